import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from harness.contracts import ModelCheck, Reference, Result
from harness.executors import Exit
from harness.outcome import TOLERANCE, Evidence, Request, decide

Values = dict[str, Any]


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
    )


def reference_of(values: Values) -> Reference:
    return Reference.model_validate(
        {
            "schema": 1,
            "workload_hash": values["workload_hash"],
            "data_sha256": values["data"]["sha256"],
            "samples": values["samples"],
            "seed": 7,
            "dtype": "float32",
            "steps": deepcopy(values["first_steps"]),
            "torch": "2.13.0+cpu",
        }
    )


def check_of(values: Values) -> ModelCheck:
    model = {key: values["model"][key] for key in ("sha256", "bytes", "parameters")}
    weights = values["rank_weights_sha256"][0]
    told = {
        "schema": 1,
        "file": "model.pt",
        "weights_sha256": weights,
        "target": "up_30",
        "rows": "bar",
        "features": [],
    }
    return ModelCheck.model_validate({**model, **told})


@pytest.fixture
def evidence(result_values: Values) -> Evidence:
    return Evidence(
        exits={"train": Exit(0)},
        result=Result.model_validate(result_values),
        model_sha256=result_values["model"]["sha256"],
        model_check=check_of(result_values),
        reference=reference_of(result_values),
    )


def outcome(request: Request, evidence: Evidence) -> tuple[str, str | None]:
    decided = decide(request, evidence)
    return decided.name, decided.diagnosis


def test_nothing_wrong_is_completed(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, evidence) == ("completed", None)


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
    "wrong first loss": (lie("first_steps.0.loss", 0.69 * 1.01), "wrong-result"),
    "wrong last compared gradient": (lie("first_steps.15.gradient_norm", 0.9), "wrong-result"),
    "ranks with different weights": (
        lambda v: v.update(world_size=2, devices=v["devices"] * 2, rank_weights_sha256=["c" * 64, "e" * 64]),
        "wrong-result",
    ),
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


@pytest.mark.parametrize("name", LIES)
def test_each_single_lie_in_a_result_is_caught(
    name: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    tell, diagnosis = LIES[name]
    tell(result_values)
    lying = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, lying) == ("failed", diagnosis)


def test_exit_0_without_a_result(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, result=None)) == ("failed", "no-result")


def test_a_model_that_is_not_there_or_is_not_the_one_or_does_not_load(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, model_sha256=None)) == ("failed", "model-damaged")
    assert outcome(request_, replace(evidence, model_sha256="e" * 64)) == ("failed", "model-damaged")
    assert outcome(request_, replace(evidence, model_check=None)) == ("failed", "model-does-not-load")


@pytest.mark.parametrize(
    "change", [{"data_sha256": "e" * 64}, {"workload_hash": "e" * 64}, {"steps": ()}], ids=["data", "workload", "short"]
)
def test_a_reference_of_something_else_is_none(request_: Request, evidence: Evidence, change: Values) -> None:
    assert evidence.reference is not None
    other = evidence.reference.model_copy(update=change)
    assert outcome(request_, replace(evidence, reference=other)) == ("failed", "no-reference")
    assert outcome(request_, replace(evidence, reference=None)) == ("failed", "no-reference")


def test_a_gradient_norm_may_be_missing_where_a_scaler_skipped_the_step(
    request_: Request, evidence: Evidence, result_values: Values
) -> None:
    result_values["first_steps"][2]["gradient_norm"] = None
    for skipped, expected in ((0, ("failed", "not-finite")), (1, ("completed", None))):
        result_values["steps_skipped"] = skipped
        assert outcome(request_, replace(evidence, result=Result.model_validate(result_values))) == expected


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


@pytest.mark.parametrize("code", [-11, -9, -6, 134, 139, 143])
def test_a_crash_is_failed_not_interrupted(code: int, request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, exits={"train": Exit(code)}, result=None)) == ("failed", "crash")


def test_a_crash_after_the_result_was_written_is_failed(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, exits={"train": Exit(-11)})) == ("failed", "crash")


def test_an_error_of_the_app_names_the_phase(request_: Request, evidence: Evidence) -> None:
    decided = decide(request_, replace(evidence, exits={"features": Exit(2)}, result=None))
    assert (decided.name, decided.diagnosis) == ("failed", "app-error")
    assert "features" in decided.detail
    assert "exit 2" in decided.detail


@pytest.mark.parametrize(
    ("stopped_by", "expected"),
    [
        ("user", ("interrupted", None)),
        ("time-limit", ("failed", "time-limit")),
        ("watchdog", ("hung", "no-progress")),
        ("host", ("host-fault", "unkillable")),
        ("start", ("failed", "not-started")),
    ],
)
def test_who_stopped_it_outweighs_everything_else(
    stopped_by: Any, expected: tuple[str, str | None], request_: Request, evidence: Evidence
) -> None:
    assert outcome(request_, replace(evidence, stopped_by=stopped_by)) == expected
    crashed = replace(evidence, stopped_by=stopped_by, exits={"train": Exit(-15)}, result=None)
    assert outcome(request_, crashed) == expected


class TestOnAGpu:
    @pytest.fixture
    def gpu_request(self, request_: Request) -> Request:
        return replace(request_, device="cuda", gpus=1, torch="2.9.1", rocm="6.3")

    @pytest.fixture
    def gpu_values(self, result_values: Values) -> Values:
        device = {"rank": 0, "device": "cuda:0", "name": "RX 7900 XT", "gfx": "gfx1100", "memory_bytes": 20 << 30}
        torch = {"version": "2.9.1+rocm6.3", "hip": "6.3.42131-fa1d09cbd", "cuda": None}
        return {**result_values, "device": "cuda", "devices": [device], "torch": torch}

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

    def test_a_cuda_build(self, gpu_request: Request, evidence: Evidence, gpu_values: Values) -> None:
        gpu_values["torch"].update(hip=None, cuda="13.0")
        assert self.decide(gpu_request, evidence, gpu_values) == ("failed", "wrong-stack")
