"""Tests of the objections to a result that follow from what the verification computed again."""

from dataclasses import replace

import pytest

from harness.evidence.outcome.decide import decide
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.outcome.request import Request
from tests.harness.evidence.outcome.judged import Values, evidence_of, found, outcome


def test_a_model_that_is_not_the_one_or_does_not_load(request_: Request, evidence: Evidence) -> None:
    assert outcome(request_, replace(evidence, model_sha256="e" * 64)) == ("failed", "model-damaged")
    unknown = found(evidence, model=None, model_problem="m.pt: not an intact model file")
    assert outcome(request_, unknown) == ("failed", "model-does-not-load")
    assert "load: 'm.pt: not an intact model file'" in decide(request_, unknown).detail


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
    assert (nothing.diagnosis, nothing.detail) == ("wrong-result", "step 32 cannot be made again: 'not an intact file'")


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
    whole = decide(replace(request_, resumed=(8,)), evidence)
    assert whole.detail.endswith("verified")
    # It began from the beginning, although it was given a checkpoint.
    assert outcome(replace(request_, resumed=(8,)), lacking) == ("failed", "wrong-result")
    result_values["resumed_at"] = [8]
    lacking = evidence_of(result_values)
    assert decide(replace(request_, resumed=(8,)), lacking).detail.endswith("verified from step 8 on")
    result_values["states"] = result_values["states"][-1:]
    assert outcome(replace(request_, resumed=(8,)), evidence_of(result_values)) == ("failed", "wrong-result")
    assert outcome(replace(request_, resumed=(23,)), evidence_of(result_values)) == ("completed", None)
    result_values["states"].append({**result_values["states"][0], "step": 31})
    assert outcome(replace(request_, resumed=(23,)), evidence_of(result_values)) == ("failed", "wrong-result")
