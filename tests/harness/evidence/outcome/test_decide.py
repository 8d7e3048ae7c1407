import ast
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.base.contract import CONTRACT, OLD_CONTRACT
from harness.environments.executors.job import Exit
from harness.evidence.app_files import Result, Training, Verification
from harness.evidence.kept_states import drawn_steps
from harness.evidence.memory import MemorySample, MemoryUse
from harness.evidence.outcome.decide import decide, never_meets, stands_so_far
from harness.evidence.outcome.diagnoses import Diagnosis, OfEnding, OfResult, StoppedBy
from harness.evidence.outcome.evidence import Evidence, PickedState
from harness.evidence.outcome.request import Request
from harness.evidence.outcome.tolerances import TOLERANCE, tolerance_of
from harness.run import products

Values = dict[str, Any]
GPU = {"rank": 0, "device": "cuda:0", "name": "RX 7900 XT", "gfx": "gfx1100", "memory_bytes": 20 << 30}
MANY_SAMPLES = [MemorySample(0, 1, 1, 10.0 * n, 10**9 + n * 10**6, None) for n in range(400)]


@pytest.fixture
def request_(result_values: Values) -> Request:
    options = {key: value for key, value in result_values["options"].items() if key != "device"}
    return Request(
        workload_hash=result_values["workload_hash"],
        data_sha256=result_values["data"]["sha256"],
        device="cpu",
        gpus=0,
        torch="2.13.0",
        rocm=None,
        options=options,
        contract=CONTRACT,
        nonce="0" * 32,
    )


def found_of(values: Values) -> Values:
    """What is found of a model whose training is what it says."""
    model = {key: values["model"][key] for key in ("sha256", "bytes", "parameters")}
    state = values["states"][-1]
    return {
        "model_kind": values.get("model_kind", "mlp"),
        "samples": values["samples"],
        "steps": deepcopy(values["first_steps"]),
        "model": {**model, "weights_sha256": values["rank_weights_sha256"][0]},
        "model_problem": None,
        "validation_loss": values["epoch_losses"][-1]["validation"],
        "replay": {key: state[key] for key in ("step", "sha256", "loss", "gradient_norm")},
        "replay_problem": None,
    }


def evidence_of(values: Values) -> Evidence:
    """Evidence of a run that is what it says."""
    result = Result.model_validate(values)
    told = {
        "schema": 2,
        "workload_hash": values["workload_hash"],
        "data_sha256": values["data"]["sha256"],
        "seed": 7,
        "dtype": "float32",
        "torch": "2.13.0+cpu",
    }
    *earlier, main = [found_of(one) for one in (*values.get("earlier", ()), values)]
    return Evidence(
        exits={"train": Exit(0)},
        result=result,
        model_sha256=result.model.sha256,
        earlier_sha256=tuple(one.model.sha256 for one in result.earlier),
        picked=tuple(PickedState(one.states[-1], one.states[-1].sha256) for one in result.trainings),
        verification=Verification.model_validate({**told, **main, "earlier": earlier}),
    )


@pytest.fixture
def evidence(result_values: Values) -> Evidence:
    return evidence_of(result_values)


def found(evidence: Evidence, **changes: Any) -> Evidence:
    """The evidence, where something else was found of the main model."""
    assert evidence.verification is not None
    return replace(evidence, verification=evidence.verification.model_copy(update=changes))


def outcome(request: Request, evidence: Evidence) -> tuple[str, str | None]:
    decided = decide(request, evidence)
    assert len(decided.detail.splitlines()) == 1, "the detail is one line, which tells why"
    return decided.name, decided.diagnosis


def test_nothing_wrong_is_completed(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, evidence) == ("completed", None)


def test_a_breach_of_the_contract_is_a_wrong_result_whether_it_ended_the_run_or_not(
    request_: Request, evidence: Evidence
) -> None:
    found = decide(request_, replace(evidence, breaches=("rank 0: a", "the result is of another run")))
    assert (found.name, found.diagnosis) == ("failed", "wrong-result")
    assert found.detail == "rank 0: a; the result is of another run"
    stopped = decide(request_, replace(evidence, result=None, stopped_by="breach", stop_detail="rank 0: a"))
    assert (stopped.name, stopped.diagnosis, stopped.detail) == ("failed", "wrong-result", "rank 0: a")


def test_what_completes_with_an_old_contract_says_so(request_: Request, evidence: Evidence) -> None:
    assert "contract" not in decide(request_, evidence).detail
    old = decide(replace(request_, contract=OLD_CONTRACT, not_verified="another app"), evidence)
    assert old.name == "completed"
    assert "32 steps; old contract, not verified" in old.detail


def lie(path: str, value: Any) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        *steps, last = path.split(".")
        place: Any = values
        for step in steps:
            place = place[int(step) if step.isdigit() else step]
        place[int(last) if last.isdigit() else last] = value

    return change


def fewer_epochs(values: Values) -> None:
    values.update(epochs_done=1, steps_done=16, epoch_losses=values["epoch_losses"][:1])


LIES = {
    "fewer epochs": (fewer_epochs, "incomplete-result"),
    "epochs done but not their losses": (lambda v: v["epoch_losses"].pop(), "incomplete-result"),
    "an epoch cut short": (lie("steps_done", 31), "incomplete-result"),
    "short epochs throughout": (lambda v: v.update(steps_per_epoch=8, steps_done=16), "incomplete-result"),
    "no samples at all": (
        lambda v: v.update(samples={"train": 0, "validation": 0}, steps_per_epoch=0, steps_done=0, first_steps=[]),
        "incomplete-result",
    ),
    "numbers of the first steps left out": (lambda v: v.update(first_steps=[]), "incomplete-result"),
    "a rank without a device": (lie("world_size", 2), "incomplete-result"),
    "loss is NaN": (lie("first_steps.3.loss", math.nan), "not-finite"),
    "gradient norm is infinite": (lie("first_steps.0.gradient_norm", math.inf), "not-finite"),
    "validation loss is NaN": (lie("epoch_losses.1.validation", math.nan), "not-finite"),
    "other data": (lie("data.sha256", "e" * 64), "wrong-data"),
    "another workload": (lie("workload_hash", "e" * 64), "wrong-workload"),
    "no workload": (lie("workload_hash", None), "wrong-workload"),
    "another seed": (lie("options.seed", 8), "wrong-workload"),
    "other layers": (lie("options.hidden_layers", [32]), "wrong-workload"),
    "a GPU used, a CPU asked": (
        lambda v: (lie("device", "cuda")(v), lie("devices.0.device", "cuda:0")(v)),
        "wrong-device",
    ),
    "a device that belies the result": (lie("devices.0.device", "cuda:0"), "wrong-device"),
    "another torch": (lie("torch.version", "2.12.0+cpu"), "wrong-stack"),
    "steps by JAX, by torch asked": (
        lambda v: v.update(framework="jax", jax={"jax": "0.10.0", "jaxlib": "0.10.0"}),
        "wrong-stack",
    ),
    "wrong first loss": (lie("first_steps.0.loss", 0.69 * 1.01), "wrong-result"),
    "wrong last compared gradient": (lie("first_steps.15.gradient_norm", 0.9), "wrong-result"),
    "a rank more than asked for": (
        lambda v: v.update(world_size=2, devices=v["devices"] * 2, rank_weights_sha256=["c" * 64] * 2),
        "incomplete-result",
    ),
    "another model than asked for": (lie("model_kind", "attention"), "incomplete-result"),
    "another batch than the options say": (lie("batch_size", 8), "wrong-workload"),
    "another model hash": (lie("model.sha256", "e" * 64), "model-damaged"),
    "another model size": (lie("model.bytes", 1), "model-damaged"),
    "no parameters": (lie("model.parameters", 0), "model-damaged"),
    "other weights than those saved": (lie("rank_weights_sha256.0", "e" * 64), "wrong-result"),
    "a fraction of the data, told consistently": (
        lambda v: v.update(
            samples={"train": 64, "validation": 200}, steps_per_epoch=1, steps_done=2, first_steps=v["first_steps"][:2]
        ),
        "incomplete-result",
    ),
    "epochs of other numbers": (lambda v: [epoch.update(epoch=7) for epoch in v["epoch_losses"]], "incomplete-result"),
    "an epoch that was not validated": (lie("epoch_losses.0.validation", None), "incomplete-result"),
    "nothing to validate on": (lie("samples.validation", 0), "incomplete-result"),
    "no sessions": (
        lie("sessions", {"total": 0, "used": 0, "train": 0, "validation": 0}),
        "incomplete-result",
    ),
    "updates that changed nothing": (lie("steps_skipped", 30), "incomplete-result"),
    "more threads than the options say": (lie("threads", 64), "wrong-workload"),
    "another strategy than the options say": (lie("strategy", "ddp"), "wrong-workload"),
    "a type with a wider tolerance": (lie("dtype", "bfloat16"), "wrong-workload"),
    "a speed that is no number": (lie("throughput.samples_per_second", math.nan), "not-finite"),
}


CHOSEN = {"keep": "best", "patience": 2}


def chose(request: Request, values: Values, *inner: float, **changes: Any) -> tuple[Request, Evidence]:
    """A training of 5 epochs that ended after those of these inner losses, and says that it kept the second."""
    epochs = [{"epoch": n, "train": 0.6, "validation": 0.6 + n / 100, "inner": loss} for n, loss in enumerate(inner, 1)]
    options = {**values["options"], "epochs": 5, **CHOSEN}
    told = {
        "options": options, "epochs_requested": 5, "epochs_done": len(inner), "stopped_early": True, "kept_epoch": 2,
        "steps_done": 16 * len(inner), "epoch_losses": epochs, "kept_weights_sha256": "9" * 64,
    }  # fmt: skip
    drawn = drawn_steps(Result.model_validate({**values, **told}), request.nonce)
    states = [{**values["states"][0], "file": f"mlp-{step}.pt", "step": step} for step in drawn]
    values = {**values, **told, "states": states, **changes}
    right = evidence_of(values)
    assert right.verification is not None
    assert right.verification.model is not None
    kept = right.verification.model.model_copy(update={"weights_sha256": "9" * 64})
    asked = {name: value for name, value in options.items() if name != "device"}
    return replace(request, options=asked), found(right, model=kept, validation_loss=epochs[1]["validation"])


def test_a_training_may_end_early_and_keep_an_earlier_epoch(request_: Request, result_values: Values) -> None:
    assert outcome(*chose(request_, result_values, 0.6, 0.5, 0.6, 0.5)) == ("completed", None)


@pytest.mark.parametrize(
    ("inner", "changes", "diagnosis"),
    [
        ((0.6, 0.5, 0.6), {}, "incomplete-result"),
        ((0.6, 0.5, 0.6, 0.5), {"stopped_early": False}, "incomplete-result"),
        ((0.4, 0.5, 0.6), {}, "wrong-result"),
        ((0.6, 0.5, 0.6, 0.5), {"kept_epoch": 4}, "wrong-result"),
        ((0.6, 0.5, 0.6, 0.5), {"kept_weights_sha256": "8" * 64}, "wrong-result"),
        ((0.6, 0.5, math.nan, 0.5), {}, "not-finite"),
    ],
    ids=["too early", "it does not say so", "not the best", "another", "other weights", "no number"],
)
def test_what_a_training_says_of_its_choice_has_to_follow_from_its_losses(
    inner: tuple[float, ...], changes: Values, diagnosis: str, request_: Request, result_values: Values
) -> None:
    assert outcome(*chose(request_, result_values, *inner, **changes)) == ("failed", diagnosis)


def test_the_saved_model_is_that_of_the_kept_epoch(request_: Request, result_values: Values) -> None:
    asked, evidence = chose(request_, result_values, 0.6, 0.5, 0.6, 0.5)
    last = evidence_of(result_values).verification
    assert last is not None
    assert outcome(asked, found(evidence, validation_loss=0.64)) == ("failed", "wrong-result")
    assert outcome(asked, found(evidence, model=last.model)) == ("failed", "wrong-result")


@pytest.mark.parametrize("name", LIES)
def test_each_single_lie_in_a_result_is_caught(
    name: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    tell, diagnosis = LIES[name]
    tell(result_values)
    lying = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, lying) == ("failed", diagnosis)


def test_a_model_that_is_not_the_one_or_does_not_load(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, model_sha256="e" * 64)) == ("failed", "model-damaged")
    unknown = found(evidence, model=None, model_problem="m.pt: not an intact model file")
    assert outcome(request_, unknown) == ("failed", "model-does-not-load")
    assert "not an intact model file" in decide(request_, unknown).detail


@pytest.mark.parametrize("change", [{"sha256": "e" * 64}, {"bytes": 1}, {"parameters": 1}], ids=str)
def test_a_model_file_that_holds_something_else_is_not_the_one(
    request_: Request, evidence: Evidence, change: Values
) -> None:
    assert evidence.verification is not None
    assert evidence.verification.model is not None
    other = found(evidence, model=evidence.verification.model.model_copy(update=change))
    assert outcome(request_, other) == ("failed", "model-damaged")


@pytest.mark.parametrize(
    "change",
    [{"data_sha256": "e" * 64}, {"workload_hash": "e" * 64}, {"steps": ()}, {"model_kind": "attention"}],
    ids=["data", "workload", "short", "model"],
)
def test_a_verification_of_something_else_is_none(request_: Request, evidence: Evidence, change: Values) -> None:
    assert outcome(request_, found(evidence, **change)) == ("failed", "verification-failed")


def test_a_verification_that_ended_otherwise_is_a_failure_of_its_own(request_: Request, evidence: Evidence) -> None:
    hung = replace(evidence, verification=None, verification_problem="watchdog: rank 0 did not advance")
    assert outcome(request_, hung) == ("failed", "verification-failed")
    assert decide(request_, hung).detail == "it could not be verified: watchdog: rank 0 did not advance"


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
        "2 epochs, 32 steps; not verified independently, so that it qualifies for nothing: no stack for CPUs",
    )


def test_only_what_nothing_speaks_against_is_worth_verifying(request_: Request, evidence: Evidence) -> None:
    bare = replace(evidence, verification=None, picked=())
    assert stands_so_far(request_, bare)
    assert stands_so_far(replace(request_, injected_fault="segv@3"), bare)
    assert not stands_so_far(request_, replace(bare, breaches=("rank 0: a",)))
    assert not stands_so_far(request_, replace(bare, exits={"train": Exit(1)}))


@pytest.mark.parametrize(("loss", "expected"), [(0.6504, "completed"), (0.66, "failed"), (None, "failed")])
def test_the_saved_model_has_the_last_validation_loss(
    request_: Request, evidence: Evidence, loss: float | None, expected: str
) -> None:
    decided = decide(request_, found(evidence, validation_loss=loss))
    assert decided.name == expected
    if expected == "failed":
        told = "none" if loss is None else f"{loss:.6g}"
        assert decided.diagnosis == "wrong-result"
        assert decided.detail == f"the saved model has validation loss {told}, not 0.65"


OF_THE_REPLAY: dict[str, tuple[Values, bool]] = {
    "as it was": ({}, True),
    "nearly": ({"loss": 0.9204, "gradient_norm": 0.502}, True),
    "another loss": ({"loss": 0.91}, False),
    "another norm": ({"gradient_norm": 0.504}, False),
    "no finite loss": ({"loss": None}, False),
    "no finite norm": ({"gradient_norm": None}, False),
    "another step": ({"step": 31}, False),
    "another file": ({"sha256": "e" * 64}, False),
}


@pytest.mark.parametrize(("change", "sound"), OF_THE_REPLAY.values(), ids=OF_THE_REPLAY)
def test_the_step_made_again_has_the_numbers_that_it_had(
    request_: Request, evidence: Evidence, change: Values, sound: bool
) -> None:
    assert evidence.verification is not None
    assert evidence.verification.replay is not None
    other = found(evidence, replay=evidence.verification.replay.model_copy(update=change))
    assert outcome(request_, other) == (("completed", None) if sound else ("failed", "wrong-result"))


def test_a_step_that_cannot_be_made_again_is_wrong(request_: Request, evidence: Evidence) -> None:
    nothing = decide(request_, found(evidence, replay=None, replay_problem="not an intact file"))
    assert (nothing.diagnosis, nothing.detail) == ("wrong-result", "step 32 cannot be made again: not an intact file")


@pytest.mark.parametrize("sha256", [None, "e" * 64])
def test_the_state_is_the_file_that_the_result_names(request_: Request, evidence: Evidence, sha256: str | None) -> None:
    (picked,) = evidence.picked
    assert picked is not None
    other = replace(evidence, picked=(replace(picked, sha256=sha256),))
    assert outcome(request_, other) == ("failed", "wrong-result")


def test_states_are_of_the_steps_that_the_nonce_draws_but_for_those_done_before(
    request_: Request, evidence: Evidence, result_values: Values
) -> None:
    assert outcome(replace(request_, nonce="1" * 32), evidence) == ("failed", "wrong-result")
    del result_values["states"][1]
    lacking = evidence_of(result_values)
    assert outcome(request_, lacking) == ("failed", "wrong-result")
    assert decide(request_, lacking).detail == "mlp: its states are not of the steps drawn for the run: 8"
    assert outcome(replace(request_, resumed=(8,)), lacking) == ("completed", None)
    result_values["states"] = result_values["states"][-1:]
    assert outcome(replace(request_, resumed=(8,)), evidence_of(result_values)) == ("failed", "wrong-result")
    assert outcome(replace(request_, resumed=(23,)), evidence_of(result_values)) == ("completed", None)
    result_values["states"].append({**result_values["states"][0], "step": 31})
    assert outcome(replace(request_, resumed=(23,)), evidence_of(result_values)) == ("failed", "wrong-result")


def test_a_gradient_norm_may_be_missing_where_a_scaler_skipped_the_step(
    request_: Request, evidence: Evidence, result_values: Values
) -> None:
    result_values["first_steps"][2]["gradient_norm"] = None
    float32 = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, float32) == ("failed", "not-finite")
    half = {"use_mixed_precision": True, "mixed_precision_dtype": "float16"}
    result_values["options"] |= half
    result_values["dtype"] = "float16"
    request_ = replace(request_, options={**request_.options, **half})
    for skipped, expected in ((0, ("failed", "not-finite")), (1, ("completed", None))):
        result_values["steps_skipped"] = skipped
        assert outcome(request_, replace(evidence, result=Result.model_validate(result_values))) == expected


@pytest.mark.parametrize("missing", ["first_steps", "states"])
def test_without_a_scaler_no_norm_is_missing_and_no_step_skipped(
    missing: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    assert outcome(request_, evidence) == ("completed", None)
    for one in result_values[missing]:
        one["gradient_norm"] = None
    assert outcome(request_, replace(evidence, result=Result.model_validate(result_values))) == ("failed", "not-finite")
    result_values["steps_skipped"] = 3
    skipped = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, skipped) == ("failed", "incomplete-result")


def test_options_that_no_record_should_hold_are_no_result(result_values: Values) -> None:
    result_values["options"]["x"] = "y" * (64 << 10)
    with pytest.raises(ValueError, match="more than 65536"):
        Result.model_validate(result_values)


def test_a_process_that_was_never_run_is_missed(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, exits={})) == ("failed", "no-result")
    two = replace(request_, phases=("features", "train"))
    assert outcome(two, evidence) == ("failed", "no-result")
    assert outcome(two, replace(evidence, exits={"features": Exit(0), "train": Exit(0)})) == ("completed", None)


@pytest.mark.parametrize(("mixed", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_the_tolerance_is_that_of_the_type_asked_for(
    mixed: bool, dtype: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    options = {**request_.options, "use_mixed_precision": mixed}
    result_values["options"]["use_mixed_precision"] = mixed
    result_values["dtype"] = dtype
    for factor, expected in ((0.5, "completed"), (2.0, "failed")):
        changed = deepcopy(result_values)
        changed["first_steps"][5]["loss"] *= 1 + factor * TOLERANCE[dtype]
        lying = replace(evidence, result=Result.model_validate(changed))
        assert outcome(replace(request_, options=options), lying)[0] == expected


def test_the_tolerance_of_an_attention_model_grows_with_each_step_and_that_of_the_mlp_does_not() -> None:
    assert {tolerance_of("mlp", "bfloat16", step) for step in (1, 2, 16)} == {TOLERANCE["bfloat16"]}
    for kind in ("attention", "attention-small"):
        tolerances = [tolerance_of(kind, "float32", step) for step in (1, 2, 3)]
        assert tolerances == pytest.approx([1e-3, 3e-3, 9e-3])


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
        # Also after the result was written, or where the work folder cannot be read.
        (-11, {"result": ...}, "crash"),
        (-11, {"leftovers": "result.json in the work folder is a FIFO"}, "crash"),
        (1, {"steps_accounted": ()}, "app-error"),
        # A command is refused before the first step only.
        (2, {"steps_accounted": ()}, "refused"),
        (2, {"steps_accounted": (0,)}, "refused"),
        # What trained, or told what cannot be or be read, was not refused; an app of the old contract does not say.
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


@pytest.mark.parametrize(
    ("stopped_by", "expected"),
    [
        ("user", ("interrupted", None)),
        ("time-limit", ("failed", "time-limit")),
        ("disk-limit", ("failed", "disk-limit")),
        ("watchdog", ("hung", "no-progress")),
        ("host", ("host-fault", "unkillable")),
        ("unhealthy", ("host-fault", "not-begun")),
        ("start", ("failed", "not-started")),
    ],
)
def test_who_stopped_it_outweighs_everything_else(
    stopped_by: Any, expected: tuple[str, str | None], request_: Request, evidence: Evidence
) -> None:
    assert outcome(request_, replace(evidence, stopped_by=stopped_by, stop_detail="why")) == expected
    crashed = replace(evidence, stopped_by=stopped_by, exits={"train": Exit(-15)}, result=None)
    assert outcome(request_, replace(crashed, stop_detail="why")) == expected


class TestOnAGpu:
    @pytest.fixture
    def gpu_request(self, request_: Request) -> Request:
        return replace(request_, device="cuda", gpus=1, torch="2.9.1", rocm="6.3")

    @pytest.fixture
    def gpu_values(self, result_values: Values) -> Values:
        torch = {"version": "2.9.1+rocm6.3", "hip": "6.3.42131-fa1d09cbd", "cuda": None}
        return {**result_values, "device": "cuda", "devices": [GPU], "torch": torch}

    def decide(
        self, request: Request, evidence: Evidence, values: Values, seen: int | None = 1
    ) -> tuple[str, str | None]:
        return outcome(request, replace(evidence, result=Result.model_validate(values), gpus_seen=seen))

    def test_completed_when_seen_from_outside(
        self, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        assert self.decide(gpu_request, evidence, gpu_values) == ("completed", None)

    def test_asked_and_a_cpu_used(self, gpu_request: Request, evidence: Evidence, result_values: Values) -> None:
        assert self.decide(gpu_request, evidence, result_values) == ("failed", "wrong-device")

    @pytest.mark.parametrize("seen", [0, None])
    def test_said_but_not_seen_from_outside(
        self, seen: int | None, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        assert self.decide(gpu_request, evidence, gpu_values, seen) == ("failed", "wrong-device")

    def test_another_rocm_than_declared(self, gpu_request: Request, evidence: Evidence, gpu_values: Values) -> None:
        gpu_values["torch"]["hip"] = "6.2.41133-dd7f95766"
        assert self.decide(gpu_request, evidence, gpu_values) == ("failed", "wrong-stack")

    @pytest.mark.parametrize(("hip", "diagnosis"), [("7.15.26333", None), ("10.0.1", "wrong-stack")])
    def test_a_rocm_whose_hip_has_numbers_of_its_own(
        self, hip: str, diagnosis: str | None, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        gpu_values["torch"]["hip"] = hip
        request = replace(gpu_request, rocm="10.0.0", hip="7.15")
        assert self.decide(request, evidence, gpu_values)[1] == diagnosis

    @pytest.mark.parametrize(("ran", "diagnosis"), [("0.10.0", None), ("0.10.2", "wrong-stack"), (None, "wrong-stack")])
    def test_steps_that_jax_is_to_make(
        self, ran: str | None, diagnosis: str | None, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        gpu_values.update({"framework": "jax", "jax": {"jax": ran}} if ran else {})
        assert self.decide(replace(gpu_request, jax="0.10.0"), evidence, gpu_values)[1] == diagnosis

    def test_a_cuda_build(self, gpu_request: Request, evidence: Evidence, gpu_values: Values) -> None:
        gpu_values["torch"].update(hip=None, cuda="13.0")
        assert self.decide(gpu_request, evidence, gpu_values) == ("failed", "wrong-stack")


LIES_ABOUT_THE_FIRST = {
    "loss": (lie("earlier.0.first_steps.3.loss", 0.1), "wrong-result"),
    "NaN": (lie("earlier.0.epoch_losses.1.train", math.nan), "not-finite"),
    "a step less": (lie("earlier.0.steps_done", 31), "incomplete-result"),
    "an epoch less": (lambda v: fewer_epochs(v["earlier"][0]), "incomplete-result"),
    "skipped": (lie("earlier.0.steps_skipped", 30), "incomplete-result"),
    "first steps": (lie("earlier.0.first_steps", []), "incomplete-result"),
    "batch": (lie("earlier.0.batch_size", 32), "wrong-workload"),
    "no weights": (lie("earlier.0.rank_weights_sha256", []), "incomplete-result"),
    "not there": (lie("earlier", []), "incomplete-result"),
    "another": (lie("earlier.0.model_kind", "attention-small"), "incomplete-result"),
    "other samples": (lie("earlier.0.samples.validation", 100), "incomplete-result"),
    "samples of the other": (lie("earlier.0.samples.train", 1000), "incomplete-result"),
    "as many steps as the other would have": (
        lambda v: v["earlier"][0].update(steps_per_epoch=15, steps_done=30),
        "incomplete-result",
    ),
}


class TestSeveralModels:
    """The mlp before the attention model, in the same process."""

    @pytest.fixture
    def both_request(self, request_: Request) -> Request:
        return replace(request_, options={**request_.options, "model": ["mlp", "attention"]})

    @pytest.fixture
    def both(self, result_values: Values) -> Values:
        first = {key: deepcopy(result_values[key]) for key in Training.model_fields if key in result_values}
        first |= {"model_kind": "mlp", "samples": {"train": 1020, "validation": 200}}
        second = deepcopy(result_values)
        second["model_kind"], second["earlier"] = "attention", [first]
        # Those that the nonce draws for it.
        for state, step in zip(second["states"], (5, 9, 15, 18, 24, 27), strict=True):
            state["step"] = step
        for step in second["first_steps"]:
            step["loss"] += 0.1
        second["options"]["model"] = ["mlp", "attention"]
        return second

    @pytest.mark.parametrize("found", [(), (None,), ("e" * 64,)])
    def test_every_model_file_is_looked_at(
        self, both_request: Request, both: Values, found: tuple[str | None, ...]
    ) -> None:
        evidence = replace(evidence_of(both), earlier_sha256=found)
        assert outcome(both_request, evidence) == ("failed", "model-damaged")

    def test_completed_when_each_agrees_with_its_own_reference(self, both_request: Request, both: Values) -> None:
        decided = decide(both_request, evidence_of(both))
        assert (decided.name, decided.detail) == (
            "completed",
            "2 epochs, 32 steps, then 2 epochs, 32 steps, verified",
        )

    @pytest.mark.parametrize("name", LIES_ABOUT_THE_FIRST)
    def test_a_lie_about_the_first_model_is_caught(self, name: str, both_request: Request, both: Values) -> None:
        evidence = evidence_of(both)
        tell, diagnosis = LIES_ABOUT_THE_FIRST[name]
        tell(both)
        decided = decide(both_request, replace(evidence, result=Result.model_validate(both)))
        assert (decided.name, decided.diagnosis) == ("failed", diagnosis)

    @pytest.mark.parametrize(
        ("step", "factor", "expected"),
        [(1, 1.0005, "completed"), (1, 1.002, "failed"), (3, 1.002, "completed"), (3, 1.02, "failed")],
    )
    def test_a_step_of_the_attention_model_is_held_to_its_own_tolerance(
        self, step: int, factor: float, expected: str, both_request: Request, both: Values
    ) -> None:
        evidence = evidence_of(both)
        both["first_steps"][step - 1]["gradient_norm"] *= factor
        assert decide(both_request, replace(evidence, result=Result.model_validate(both))).name == expected

    def test_the_model_that_is_wrong_is_named(self, both_request: Request, both: Values) -> None:
        evidence = evidence_of(both)
        both["earlier"][0]["first_steps"][0]["loss"] = 0.1
        assert decide(both_request, replace(evidence, result=Result.model_validate(both))).detail.startswith("mlp: ")

    def test_a_verification_of_one_model_is_none_for_two(self, both_request: Request, both: Values) -> None:
        evidence = evidence_of(both)
        assert outcome(both_request, found(evidence, earlier=())) == ("failed", "verification-failed")


class TestSeveralDevices:
    def claimed(self, values: Values, strategy: str, ranks: int, devices: int) -> Values:
        device = values["devices"][0]
        options = {**values["options"], "strategy": strategy, "devices": 2}
        return {
            **values,
            "options": options,
            "strategy": strategy,
            "world_size": ranks,
            "devices": [{**device, "rank": n if ranks > 1 else 0} for n in range(devices)],
            "rank_weights_sha256": values["rank_weights_sha256"] * ranks,
        }

    def asked(self, request: Request, strategy: str) -> Request:
        return replace(request, devices=2, options={**request.options, "strategy": strategy, "devices": 2})

    @pytest.mark.parametrize(
        ("strategy", "ranks"), [("ddp", 2), ("averaging", 2), ("fsdp", 2), ("dp", 1), ("model-parallel", 1)]
    )
    def test_each_strategy_has_its_ranks(
        self, strategy: str, ranks: int, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        right = self.claimed(result_values, strategy, ranks, 2)
        for values, expected in (
            (right, ("completed", None)),
            (self.claimed(result_values, strategy, 3 - ranks, 2), ("failed", "incomplete-result")),
            (self.claimed(result_values, strategy, 1, 1), ("failed", "incomplete-result")),
            ({**right, "rank_weights_sha256": ["c" * 64] * (3 - ranks)}, ("failed", "incomplete-result")),
            ({**right, "options": {**right["options"], "devices": 1}}, ("failed", "wrong-workload")),
        ):
            told = replace(evidence, result=Result.model_validate(values))
            assert outcome(self.asked(request_, strategy), told) == expected

    def test_one_rank_told_twice_is_not_two(self, request_: Request, evidence: Evidence, result_values: Values) -> None:
        values = self.claimed(result_values, "ddp", 2, 2)
        values["devices"][1]["rank"] = 0
        told = replace(evidence, result=Result.model_validate(values))
        assert outcome(self.asked(request_, "ddp"), told) == ("failed", "incomplete-result")

    def test_ranks_that_end_with_different_weights(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        values = self.claimed(result_values, "ddp", 2, 2)
        values["rank_weights_sha256"] = ["c" * 64, "e" * 64]
        told = replace(evidence, result=Result.model_validate(values))
        assert outcome(self.asked(request_, "ddp"), told) == ("failed", "wrong-result")


class TestInjectedFault:
    """A fault injected on purpose: the run is never evidence."""

    FAULT = "flip-gradient@3/1"

    def test_one_that_nothing_noticed_is_not_completed(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        result_values["injected_fault"] = self.FAULT
        decided = decide(request_, replace(evidence, result=Result.model_validate(result_values)))
        assert (decided.name, decided.diagnosis) == ("failed", "injected-fault")
        assert self.FAULT in decided.detail

    def test_one_that_the_result_does_not_know_of_is_not_completed(self, request_: Request, evidence: Evidence) -> None:
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
        assert decided.detail.endswith("it comes after the injected fault segv, so that it counts for nothing")

    def test_one_that_was_noticed_keeps_its_diagnosis(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        result_values["injected_fault"] = self.FAULT
        result_values["first_steps"][2]["gradient_norm"] = 1e30
        caught = replace(evidence, result=Result.model_validate(result_values))
        decided = decide(request_, caught)
        assert (decided.name, decided.diagnosis) == ("failed", "wrong-result")
        assert decided.detail.endswith(f"fault injected on purpose: {self.FAULT}")
        assert outcome(request_, replace(caught, stopped_by="watchdog")) == ("hung", "no-progress")


class TestMemory:
    def peaks(self, driver: int | None, reserved: int | None) -> Values:
        told = {"peak_allocated_bytes": 1, "peak_rss_bytes": 1, "fragmentation": None, "owners": None}
        return {**told, "peak_driver_bytes": driver, "peak_reserved_bytes": reserved}

    @pytest.mark.parametrize(
        ("driver", "reserved", "expected"),
        [
            (18 * 10**9, 20 * 10**9, ("completed", None)),
            (18 * 10**9 + 1, 1, ("failed", "memory-limit")),
            (None, 18 * 10**9 + 1, ("failed", "memory-limit")),
            (None, 1, ("completed", None)),
            (None, None, ("failed", "incomplete-result")),
        ],
    )
    def test_the_limit_holds_for_the_drivers_word_where_there_is_one(
        self,
        driver: int | None,
        reserved: int | None,
        expected: tuple[str, str | None],
        request_: Request,
        evidence: Evidence,
        result_values: Values,
    ) -> None:
        values = {**result_values, "device": "cuda", "devices": [GPU], "memory": self.peaks(driver, reserved)}
        asked = replace(request_, device="cuda", gpus=1, max_device_memory=18 * 10**9)
        told = replace(evidence, result=Result.model_validate(values), gpus_seen=1)
        assert outcome(asked, told) == expected
        assert outcome(replace(asked, max_device_memory=None), told) == ("completed", None)

    def test_a_gpu_whose_memory_nobody_told_is_not_within_its_limit(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        asked = replace(request_, max_device_memory=1)
        # On a CPU there is no device memory to limit.
        assert outcome(asked, evidence) == ("completed", None)
        told = Result.model_validate({**result_values, "device": "cuda", "devices": [GPU]})
        seen = replace(evidence, result=told, gpus_seen=1)
        assert outcome(replace(asked, device="cuda", gpus=1), seen) == ("failed", "incomplete-result")

    def test_every_rank_is_held_to_the_limit(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        options = {**result_values["options"], "strategy": "ddp"}
        two = {"devices": [GPU, {**GPU, "rank": 1}], "world_size": 2, "rank_weights_sha256": ["c" * 64] * 2}
        values = {**result_values, **two, "device": "cuda", "options": options, "strategy": "ddp"}
        told = Result.model_validate({**values, "memory": self.peaks(10**9, 10**9)})
        asked = replace(
            request_, device="cuda", gpus=2, devices=2, max_device_memory=2 * 10**9,
            options={**request_.options, "strategy": "ddp"},
        )  # fmt: skip
        for held, expected in ((10**9, ("completed", None)), (3 * 10**9, ("failed", "memory-limit"))):
            samples = (MemorySample(0, 1, 1, 0.0, 1, 10**9), MemorySample(1, 2, 1, 0.0, 1, held))
            seen = replace(evidence, result=told, gpus_seen=2, memory=MemoryUse.of(samples))
            assert outcome(asked, seen) == expected

    def test_memory_that_grew_while_it_trained(self, request_: Request, evidence: Evidence) -> None:
        assert outcome(request_, replace(evidence, memory=MemoryUse.of(MANY_SAMPLES))) == ("failed", "memory-grows")
        still = tuple(replace(sample, rss_bytes=10**9) for sample in MANY_SAMPLES)
        assert outcome(request_, replace(evidence, memory=MemoryUse.of(still))) == ("completed", None)


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
    # What the app saw itself, and what completed all the same, is not explained away.
    assert outcome(request_, replace(evidence, exits={"train": Exit(4)}, no_kernels=told)) == ("failed", "not-finite")
    assert outcome(request_, replace(evidence, no_kernels=told)) == ("completed", None)


def test_a_diagnosis_is_of_the_ending_or_of_the_result() -> None:
    assert set(get_args(OfEnding)) & set(get_args(OfResult)) == set()


# What brings a diagnosis about: changes to the request, to the evidence, to what is found of the model, to the result.
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
        {"device": "cuda", "devices": [GPU], "memory": TestMemory().peaks(2, 2)},
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
    assert sorted(BROUGHT_ABOUT) == sorted({*get_args(OfEnding), *get_args(OfResult)})


@pytest.mark.parametrize("diagnosis", BROUGHT_ABOUT)
def test_a_diagnosis_is_given_where_its_cause_is(
    diagnosis: Diagnosis, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    """One that is listed and documented may still be decided nowhere, or only by code that nothing reaches."""
    asked, seen, of_model, told = BROUGHT_ABOUT[diagnosis]
    whole = replace(found(evidence, **of_model), result=Result.model_validate({**result_values, **told}))
    decided = decide(replace(request_, **asked), replace(whole, **seen))
    assert (decided.name, decided.diagnosis) == (NOT_FAILED.get(diagnosis, "failed"), diagnosis)
    assert decided.detail or "stopped_by" in seen, "the detail is all that explains it"


def strings_given(module: Path) -> set[str]:
    """The strings in code that it may return: not those of docstrings, types, keys and comparisons."""
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


def test_every_end_from_outside_is_brought_about_by_code() -> None:
    run_modules = Path(products.__file__).parent.rglob("*.py")
    assert sorted(set(get_args(StoppedBy)) - set[str]().union(*map(strings_given, run_modules))) == []
