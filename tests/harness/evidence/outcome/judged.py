"""Evidence of runs that are what they claim to be, and changes to it."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from harness.environments.executors.job import Exit
from harness.evidence.app_reports.memory import MemorySample
from harness.evidence.files.app_files import Result, Verification
from harness.evidence.outcome.decide import decide
from harness.evidence.outcome.evidence import Evidence, PickedState
from harness.evidence.outcome.request import Request

Values = dict[str, Any]
GPU = {"rank": 0, "device": "cuda:0", "name": "RX 7900 XT", "gfx": "gfx1100", "memory_bytes": 20 << 30}
MANY_SAMPLES = [MemorySample(0, 1, 1, 10.0 * n, 10**9 + n * 10**6, None) for n in range(400)]


def found_of(values: Values) -> Values:
    """Return what a verification finds of a model that was trained as its result says."""
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
    """Return the evidence of a run that is what its result says."""
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


def found(evidence: Evidence, **changes: Any) -> Evidence:
    """Return the evidence with changes to what the verification found of the main model."""
    assert evidence.verification is not None
    return replace(evidence, verification=evidence.verification.model_copy(update=changes))


def outcome(request: Request, evidence: Evidence) -> tuple[str, str | None]:
    decided = decide(request, evidence)
    assert len(decided.detail.splitlines()) == 1, "the detail is one line, which tells why"
    return decided.name, decided.diagnosis


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


def peaks(driver: int | None, reserved: int | None) -> Values:
    """Return the memory section of a result with these peaks, in bytes."""
    told = {"peak_allocated_bytes": 1, "peak_rss_bytes": 1, "fragmentation": None, "owners": None}
    return {**told, "peak_driver_bytes": driver, "peak_reserved_bytes": reserved}
