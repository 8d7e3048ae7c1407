import ast
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.base.contract import OLD_CONTRACT
from harness.environments.executors.job import Exit
from harness.evidence.app_reports.memory import MemoryUse
from harness.evidence.files.app_files import Result
from harness.evidence.files.kept_states import drawn_steps
from harness.evidence.outcome.decide import decide, never_meets, stands_so_far
from harness.evidence.outcome.diagnoses import (
    BREACH,
    ENDED_FROM_OUTSIDE,
    Diagnosis,
    EndDiagnosis,
    ResultDiagnosis,
    StoppedBy,
)
from harness.evidence.outcome.evidence import Evidence, ProgramEvidence
from harness.evidence.outcome.request import Request
from harness.run import products
from tests.harness.evidence.outcome.judged import (
    GPU,
    MANY_SAMPLES,
    Values,
    evidence_of,
    fewer_epochs,
    found,
    outcome,
    peaks,
)


def test_nothing_wrong_is_completed(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, evidence) == ("completed", None)


def test_a_breach_of_the_contract_is_a_wrong_result_whether_it_ended_the_run_or_not(
    request_: Request, evidence: Evidence
) -> None:
    found = decide(request_, replace(evidence, breaches=("rank 0: a", "the result is of another run")))
    assert (found.name, found.diagnosis) == ("failed", "wrong-result")
    assert found.detail == f"{BREACH}rank 0: a; the result is of another run"
    stopped = decide(request_, replace(evidence, result=None, stopped_by="breach", stop_detail="rank 0: a"))
    assert (stopped.name, stopped.diagnosis, stopped.detail) == ("failed", "wrong-result", f"{BREACH}rank 0: a")


def test_what_completes_with_an_old_contract_says_so(request_: Request, evidence: Evidence) -> None:
    assert "contract" not in decide(request_, evidence).detail
    old = decide(replace(request_, contract=OLD_CONTRACT, not_verified="another app"), evidence)
    assert old.name == "completed"
    assert "32 steps; old contract, not verified" in old.detail


def test_one_epoch_is_named_as_one(request_: Request, result_values: Values) -> None:
    options = {**result_values["options"], "epochs": 1}
    values = {**result_values, "options": options, "epochs_requested": 1}
    fewer_epochs(values)
    drawn = drawn_steps(Result.model_validate(values), request_.nonce)
    values["states"] = [{**values["states"][0], "file": f"mlp-{step}.pt", "step": step} for step in drawn]
    asked = replace(request_, options={**request_.options, "epochs": 1}, not_verified="no stack for CPUs")
    decided = decide(asked, replace(evidence_of(values), verification=None, picked=()))
    assert decided.detail.startswith("1 epoch, 16 steps; not verified")


def test_where_nothing_can_verify_it_a_run_completes_and_says_that_it_qualifies_for_nothing(
    request_: Request, evidence: Evidence
) -> None:
    alone = replace(evidence, verification=None, picked=())
    decided = decide(replace(request_, not_verified="no stack for CPUs"), alone)
    assert (decided.name, decided.detail) == (
        "completed",
        "2 epochs, 32 steps; not verified independently, so it qualifies for nothing: no stack for CPUs",
    )


def test_only_what_nothing_speaks_against_is_worth_verifying(request_: Request, evidence: Evidence) -> None:
    bare = replace(evidence, verification=None, picked=())
    assert stands_so_far(request_, bare)
    assert stands_so_far(replace(request_, injected_fault="segv@3"), bare)
    assert not stands_so_far(request_, replace(bare, breaches=("rank 0: a",)))
    assert not stands_so_far(request_, replace(bare, exits={"train": Exit(1)}))


def test_a_process_that_was_never_run_is_missed(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, exits={})) == ("failed", "no-result")
    two = replace(request_, phases=("features", "train"))
    assert outcome(two, evidence) == ("failed", "no-result")
    assert outcome(two, replace(evidence, exits={"features": Exit(0), "train": Exit(0)})) == ("completed", None)


def test_an_error_of_the_app_names_the_phase(request_: Request, evidence: Evidence) -> None:
    decided = decide(request_, replace(evidence, exits={"features": Exit(2)}, result=None))
    assert (decided.name, decided.diagnosis) == ("failed", "app-error")
    assert "features" in decided.detail
    assert "exit 2" in decided.detail


def test_a_work_folder_that_cannot_be_read_is_failed(request_: Request, evidence: Evidence) -> None:
    odd = replace(evidence, leftovers="result.json in the work folder is a FIFO")
    for one in (odd, replace(odd, result=None)):
        decided = decide(request_, one)
        assert (decided.name, decided.diagnosis, decided.detail) == ("failed", "work-folder", odd.leftovers)


@pytest.mark.parametrize(("code", "killed"), [(-9, "the process was"), (1, "a process it had started was")])
def test_a_kill_at_the_memory_limit_is_reported(code: int, killed: str, request_: Request, evidence: Evidence) -> None:
    decided = decide(request_, replace(evidence, exits={"train": Exit(code, out_of_memory=True)}, result=None))
    assert (decided.name, decided.diagnosis) == ("failed", "out-of-memory")
    assert decided.detail.startswith(killed)


@pytest.mark.parametrize(
    ("code", "seen", "diagnosis"),
    [
        *((code, {}, "crash") for code in (-11, -9, -6, 134, 139, 143)),
        # A crash is one also after the result was written, and where the work folder cannot be read.
        (-11, {"result": ...}, "crash"),
        (-11, {"leftovers": "result.json in the work folder is a FIFO"}, "crash"),
        (1, {"steps_accounted": ()}, "app-error"),
        # The app can refuse a command only before the first step.
        (2, {"steps_accounted": ()}, "refused"),
        (2, {"steps_accounted": (0,)}, "refused"),
        # A run is not refused if it trained, if its progress is wrong or unreadable, or if its steps are unknown.
        (2, {"steps_accounted": (5, 0)}, "app-error"),
        (2, {"steps_accounted": (), "breaches": ("rank 0: a line too many",)}, "app-error"),
        (2, {"steps_accounted": (), "leftovers": "progress-0.jsonl in the work folder is a link"}, "app-error"),
        (2, {"steps_accounted": None}, "app-error"),
    ],
)
def test_a_process_that_ended_with_an_error_has_failed(
    code: int, seen: Values, diagnosis: str, request_: Request, evidence: Evidence
) -> None:
    result = {"result": evidence.result if "result" in seen else None}
    ended = replace(evidence, exits={"train": Exit(code)}, **{**seen, **result})
    assert outcome(request_, ended) == ("failed", diagnosis)


@pytest.mark.parametrize(("stopped_by", "expected"), ENDED_FROM_OUTSIDE.items())
def test_who_stopped_it_outweighs_everything_else(
    stopped_by: StoppedBy, expected: tuple[str, str | None], request_: Request, evidence: Evidence
) -> None:
    assert outcome(request_, replace(evidence, stopped_by=stopped_by, stop_detail="why")) == expected
    crashed = replace(evidence, stopped_by=stopped_by, exits={"train": Exit(-15)}, result=None)
    assert outcome(request_, replace(crashed, stop_detail="why")) == expected


class TestInjectedFault:
    """Runs with a fault that was injected on purpose, which are never evidence."""

    FAULT = "flip-gradient@3/1"

    def test_one_that_the_app_alone_tells_of_is_its_failure(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        result_values["injected_fault"] = self.FAULT
        decided = decide(request_, replace(evidence, result=Result.model_validate(result_values)))
        assert (decided.name, decided.diagnosis) == ("failed", "wrong-workload")
        assert self.FAULT in decided.detail

    def test_one_that_nothing_noticed_is_not_completed(self, request_: Request, evidence: Evidence) -> None:
        decided = decide(replace(request_, injected_fault="paused"), evidence)
        assert (decided.name, decided.diagnosis) == ("failed", "injected-fault")
        assert "paused" in decided.detail

    @pytest.mark.parametrize(
        ("fault", "resumed", "met"),
        [
            ("after segv", (), False),
            ("after segv", (29,), False),
            ("segv@35", (58,), False),
            ("segv@35/1", (58, 58), False),
            ("segv@35", (29,), True),
            ("segv@35", (0, 58), True),
            ("segv@35", (), True),
            ("paused", (29,), True),
        ],
    )
    def test_one_before_the_steps_of_an_attempt_is_never_met(
        self, fault: str, resumed: tuple[int, ...], met: bool
    ) -> None:
        assert never_meets(resumed, fault) is not met

    def test_one_that_is_never_met_is_not_called_unnoticed(self, request_: Request, evidence: Evidence) -> None:
        decided = decide(replace(request_, injected_fault="after segv"), evidence)
        assert (decided.name, decided.diagnosis) == ("completed", None)
        assert decided.detail.endswith("it comes after the injected fault segv, so it does not count")

    def test_one_that_was_noticed_keeps_its_diagnosis(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        request_ = replace(request_, injected_fault=self.FAULT)
        result_values["first_steps"][2]["gradient_norm"] = 1e30
        caught = replace(evidence, result=Result.model_validate(result_values))
        decided = decide(request_, caught)
        assert (decided.name, decided.diagnosis) == ("failed", "wrong-result")
        assert decided.detail.endswith(f"fault injected on purpose: {self.FAULT}")
        assert outcome(request_, replace(caught, stopped_by="watchdog")) == ("hung", "no-progress")


def test_the_type_asked_for_by_name_counts(request_: Request) -> None:
    options = {**request_.options, "use_mixed_precision": True, "mixed_precision_dtype": "bfloat16"}
    assert replace(request_, options=options, device="cuda").dtype == "bfloat16"
    del options["mixed_precision_dtype"]
    assert replace(request_, options=options, device="cuda").dtype == "float16"


@pytest.mark.parametrize(
    ("changes", "itself"),
    [
        ({"exits": {"train": Exit(-11)}}, "failed (crash), the train process ended with SIGSEGV"),
        ({"exits": {}, "stopped_by": "watchdog", "stop_detail": "was stalled"}, "hung (no-progress), was stalled"),
        ({"exits": {}, "stopped_by": "engine", "stop_detail": "gone"}, "the run itself: gone"),
    ],
)
def test_an_unhealthy_gpu_makes_it_the_hosts_fault(
    changes: dict[str, Any], itself: str, request_: Request, evidence: Evidence
) -> None:
    found = ("GPU 1 failed its probe: device hung", "the kernel log shows a reset")
    decided = decide(request_, replace(evidence, **changes, host_problems=found))
    assert (decided.name, decided.diagnosis) == ("host-fault", "unhealthy-gpu")
    assert decided.detail.startswith(
        "GPU 1 failed its probe: device hung; the kernel log shows a reset; the run itself: "
    )
    assert decided.detail.endswith(itself)


def test_what_cannot_be_killed_keeps_its_diagnosis_beside_an_unhealthy_gpu(
    request_: Request, evidence: Evidence
) -> None:
    stuck = replace(
        evidence, stopped_by="host", stop_detail="a process cannot be killed", host_problems=("GPU 1 unhealthy",)
    )
    decided = decide(request_, stuck)
    assert (decided.name, decided.diagnosis) == ("host-fault", "unkillable")
    assert decided.detail == "GPU 1 unhealthy; the run itself: host-fault (unkillable), a process cannot be killed"


def test_a_run_that_completed_is_its_own_probe(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, host_problems=("GPU 1 unhealthy",))) == ("completed", None)


def test_an_environment_whose_probe_failed_where_anothers_passed_has_no_kernels(
    request_: Request, evidence: Evidence
) -> None:
    told = "no kernels for this card: GPU 0: matmul-fp32 failed"
    for code in (1, -11):
        crashed = replace(evidence, exits={"train": Exit(code)}, no_kernels=told)
        decided = decide(request_, crashed)
        assert (decided.name, decided.diagnosis) == ("failed", "missing-arch")
        assert decided.detail.startswith(f"{told}; the train process ended with")
    # Missing kernels explain neither what the app itself diagnosed (exit 4) nor a run that completed.
    assert outcome(request_, replace(evidence, exits={"train": Exit(4)}, no_kernels=told)) == ("failed", "not-finite")
    assert outcome(request_, replace(evidence, no_kernels=told)) == ("completed", None)


def test_a_diagnosis_is_of_the_ending_or_of_the_result() -> None:
    assert set(get_args(EndDiagnosis)) & set(get_args(ResultDiagnosis)) == set()


# A cause of each diagnosis: changes to the request, to the evidence, to the verification of the model, to the result.
BROUGHT_ABOUT: dict[Diagnosis, tuple[Values, Values, Values, Values]] = {
    "app-error": ({}, {"exits": {"train": Exit(1)}}, {}, {}),
    "crash": ({}, {"exits": {"train": Exit(-11)}}, {}, {}),
    "disk-limit": ({}, {"stopped_by": "disk-limit"}, {}, {}),
    "no-progress": ({}, {"stopped_by": "watchdog"}, {}, {}),
    "not-finite": ({}, {"exits": {"train": Exit(4)}}, {}, {}),
    "not-started": ({}, {"stopped_by": "start"}, {}, {}),
    "out-of-memory": ({}, {"exits": {"train": Exit(-9, out_of_memory=True)}}, {}, {}),
    "refused": ({}, {"exits": {"train": Exit(2)}, "steps_accounted": (0,)}, {}, {}),
    "unhealthy-gpu": ({}, {"exits": {"train": Exit(1)}, "host_problems": ("GPU 1 unhealthy",)}, {}, {}),
    "time-limit": ({}, {"stopped_by": "time-limit"}, {}, {}),
    "unkillable": ({}, {"stopped_by": "host"}, {}, {}),
    "wrong-result": ({}, {"exits": {"train": Exit(5)}}, {}, {}),
    "injected-fault": ({"injected_fault": "paused"}, {}, {}, {}),
    "incomplete-result": ({}, {}, {}, {"steps_done": 31}),
    "memory-grows": ({}, {"memory": MemoryUse.of(MANY_SAMPLES)}, {}, {}),
    "memory-limit": (
        {"device": "cuda", "gpus": 1, "max_device_memory": 1},
        {"gpus_seen": 1},
        {},
        {"device": "cuda", "devices": [GPU], "memory": peaks(2, 2)},
    ),
    "missing-arch": ({}, {"exits": {"train": Exit(1)}, "no_kernels": "no kernels for this card"}, {}, {}),
    "model-damaged": ({}, {"model_sha256": None}, {}, {}),
    "model-does-not-load": ({}, {}, {"model": None, "model_problem": "no weights"}, {}),
    "no-result": ({}, {"result": None}, {}, {}),
    "not-begun": ({}, {"stopped_by": "image"}, {}, {}),
    "wrong-data": ({"data_sha256": "f" * 64}, {}, {}, {}),
    "wrong-device": ({"device": "cuda", "gpus": 1}, {}, {}, {}),
    "wrong-stack": ({"torch": "2.12.0"}, {}, {}, {}),
    "verification-failed": ({}, {"verification": None}, {}, {}),
    "work-folder": ({}, {"leftovers": "a folder in the place of a file"}, {}, {}),
    "wrong-workload": ({"workload_hash": "f" * 64}, {}, {}, {}),
}


NOT_FAILED = {"no-progress": "hung", **dict.fromkeys(("unhealthy-gpu", "unkillable", "not-begun"), "host-fault")}


def test_every_diagnosis_is_brought_about_here() -> None:
    assert sorted(BROUGHT_ABOUT) == sorted({*get_args(EndDiagnosis), *get_args(ResultDiagnosis)})


@pytest.mark.parametrize("diagnosis", BROUGHT_ABOUT)
def test_a_diagnosis_is_given_where_its_cause_is(
    diagnosis: Diagnosis, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    """A diagnosis may be listed and documented though no code decides it, or only code that is never reached."""
    asked, seen, of_model, told = BROUGHT_ABOUT[diagnosis]
    whole = replace(found(evidence, **of_model), result=Result.model_validate({**result_values, **told}))
    decided = decide(replace(request_, **asked), replace(whole, **seen))
    assert (decided.name, decided.diagnosis) == (NOT_FAILED.get(diagnosis, "failed"), diagnosis)
    assert decided.detail or "stopped_by" in seen, "the detail is all that explains it"


@pytest.mark.parametrize("diagnosis", ["memory-grows", "memory-limit"])
def test_a_run_that_is_not_verified_because_of_its_memory_is_diagnosed_so(
    diagnosis: Diagnosis, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    asked, seen, _, told = BROUGHT_ABOUT[diagnosis]
    result = Result.model_validate({**result_values, **told})
    request, unverified = replace(request_, **asked), replace(evidence, result=result, verification=None, **seen)
    assert not stands_so_far(request, unverified)
    assert decide(request, unverified).diagnosis == diagnosis


def strings_given(module: Path) -> set[str]:
    """Return the string literals that a module may return: not those in docstrings, types, keys and comparisons."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    asked: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts = [node.value]
        elif isinstance(node, ast.Compare | ast.Subscript):
            parts = [node]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        asked |= {id(inner) for part in parts if part for inner in ast.walk(part)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {str(node.value) for node in strings if id(node) not in asked}


def test_every_end_from_outside_has_an_outcome_and_is_brought_about_by_code() -> None:
    assert sorted(get_args(StoppedBy)) == sorted(ENDED_FROM_OUTSIDE)
    run_modules = Path(products.__file__).parent.rglob("*.py")
    assert sorted(set(get_args(StoppedBy)) - set[str]().union(*map(strings_given, run_modules))) == []


def test_everything_that_decides_is_read_of_a_run() -> None:
    """A field that only tests set, and that keeps its default in real runs, would never change an outcome."""
    modules = [ast.parse(file.read_text(encoding="utf-8")) for file in Path(products.__file__).parent.rglob("*.py")]
    calls = [node for module in modules for node in ast.walk(module) if isinstance(node, ast.Call)]
    given = {keyword.arg for call in calls for keyword in call.keywords}
    asked = {one.name for kind in (Request, Evidence, ProgramEvidence) for one in fields(kind)}
    assert sorted(asked - given) == []
