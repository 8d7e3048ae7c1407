"""Objections to a run that ended by itself, from the parts that this host computed again."""

import math
from collections.abc import Iterator

from harness.base.text import LONGEST_QUOTE, safe_text
from harness.base.wording import some_of
from harness.evidence.files.app_files import Result, StepNumbers, Training, VerifiedTraining
from harness.evidence.files.kept_states import wrong_states
from harness.evidence.outcome.diagnoses import Diagnosis
from harness.evidence.outcome.evidence import Evidence, PickedState
from harness.evidence.outcome.request import Request
from harness.evidence.outcome.tolerances import NORM_FACTOR, ROUNDING, TOLERANCE, norms_agree, steps_agree, tolerance_of

MOST_NAMED = 5


def verification_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield where this host computed something else than the result says, and what speaks against the kept states."""
    if request.not_verified is None:
        if evidence.not_verified is None:
            yield from _computed_objections(request, evidence, result)
        yield from _state_objections(request, evidence, result)


def _computed_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield where this host computed something else, or could not compute."""
    found = evidence.verification
    if found is None:
        yield "verification-failed", f"it could not be verified: {evidence.verification_problem}"
        return
    if (found.data_sha256, found.workload_hash) != (request.data_sha256, request.workload_hash):
        yield "verification-failed", "it was verified with other data or another workload"
    if [one.model_kind for one in found.models] != [told.model_kind for told in result.trainings]:
        yield "verification-failed", "other models were verified"
        return
    for told, right, picked in zip(result.trainings, found.models, evidence.picked, strict=True):
        for objections in (
            _loaded_objections(told, right),
            _step_objections(told, right, result.dtype),
            _validation_objections(told, right, result.dtype),
            _replay_objections(picked, right, result.dtype),
        ):
            for diagnosis, detail in objections:
                yield diagnosis, f"{told.model_kind}: {detail}" if result.earlier else detail


def _loaded_objections(told: Training, right: VerifiedTraining) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against a model file."""
    if right.model is None:
        why = f": {safe_text(right.model_problem, LONGEST_QUOTE)}" if right.model_problem else ""
        yield "model-does-not-load", f"the model does not load{why}"
        return
    claimed = (told.model.sha256, told.model.bytes, told.model.parameters)
    if claimed != (right.model.sha256, right.model.bytes, right.model.parameters):
        yield "model-damaged", "hash, size or parameters of the model file are not those the result gives"
    if right.model.weights_sha256 != (told.kept_weights_sha256 or told.rank_weights_sha256[0]):
        yield "wrong-result", "the weights in the model file are not those of the epoch that was kept"
    if told.kept_epoch in (None, told.epochs_done) and right.model.weights_sha256 not in told.rank_weights_sha256:
        yield "wrong-result", "the weights in the model file are not those the ranks ended with"


def _step_objections(told: Training, right: VerifiedTraining, dtype: str) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the first steps of one model."""
    if told.samples != right.samples:
        yield "incomplete-result", f"trained on {told.samples.train} samples of {right.samples.train}"
    if len(right.steps) != len(told.first_steps):
        yield "verification-failed", "another number of first steps was verified"
    for got, expected in zip(told.first_steps, right.steps, strict=False):
        tolerance = tolerance_of(told.model_kind, dtype, got.step)
        if not steps_agree(got, expected, tolerance):
            yield "wrong-result", f"{_in_words(got)}, the CPU reference has {_in_words(expected)} ({tolerance:g})"


def _validation_objections(told: Training, right: VerifiedTraining, dtype: str) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the validation loss of the kept epoch, which must be that of the saved model."""
    kept = (told.kept_epoch or told.epochs_done) - 1
    claimed, found, tolerance = told.epoch_losses[kept].validation, right.validation_loss, TOLERANCE[dtype]
    if claimed is None or found is None or not math.isclose(claimed, found, rel_tol=tolerance, abs_tol=ROUNDING):
        yield "wrong-result", f"the saved model has validation loss {_number(found)}, not {_number(claimed)}"


def _replay_objections(
    picked: PickedState | None, right: VerifiedTraining, dtype: str
) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the step that was computed again."""
    if picked is None:
        # The run that this one resumes made all the steps.
        return
    got, replay = picked.state, right.replay
    if replay is None or (replay.step, replay.sha256) != (got.step, picked.sha256):
        why = safe_text(right.replay_problem, LONGEST_QUOTE) if right.replay_problem else "another one was"
        yield "wrong-result", f"step {got.step} cannot be made again: {why}"
        return
    tolerances = TOLERANCE[dtype], NORM_FACTOR * TOLERANCE[dtype]
    same_loss = replay.loss is not None and math.isclose(got.loss, replay.loss, rel_tol=tolerances[0], abs_tol=ROUNDING)
    if not (same_loss and norms_agree(got.gradient_norm, replay.gradient_norm, tolerances[1])):
        again = f"loss {_number(replay.loss)}, gradient norm {_number(replay.gradient_norm)}"
        allowed = " and ".join(f"{tolerance:g}" for tolerance in tolerances)
        yield "wrong-result", f"{_in_words(got)}; made again from its state it has {again} ({allowed})"


def _state_objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield what speaks against the kept states of each model."""
    done_before = result.done_before(request.resumed or (0,) * len(result.trainings))
    for told, before in zip(result.trainings, done_before, strict=False):
        if wrong := wrong_states(told, request.nonce, before):
            yield (
                "wrong-result",
                f"{told.model_kind}: its states are not of the steps drawn for the run: {some_of(wrong, MOST_NAMED)}",
            )
    for one in evidence.picked:
        if one and one.sha256 != one.state.sha256:
            yield "wrong-result", f"the state of step {one.state.step} does not have the hash the result gives"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _in_words(step: StepNumbers) -> str:
    return f"step {step.step}: loss {step.loss:.6g}, gradient norm {_number(step.gradient_norm)}"
