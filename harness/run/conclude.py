"""The conclusion of a run after its processes: the outcome, the checks of its GPUs, and the explanation."""

from dataclasses import dataclass, replace

from harness.base.interrupts import GRACE_SECONDS, open_to_interruption
from harness.diagnosis.explain import explain_run
from harness.evidence.files.run_files import Explanation
from harness.evidence.outcome.decide import Outcome, decide, undecided
from harness.evidence.outcome.diagnoses import is_wrong
from harness.evidence.outcome.evidence import Evidence
from harness.host.processes.run_processes import end_processes_of_run
from harness.run.gpu_health import Checkup, MemoryBefore, after_completion, after_failure, after_unkillable
from harness.run.notes import Notes, cannot_be_read
from harness.run.spec import RunSpec


@dataclass(frozen=True)
class RunConclusion:
    """The outcome of a run and what it rests on. `interrupt`: what interrupted the post-run checks, if anything."""

    outcome: Outcome
    evidence: Evidence
    explanation: Explanation | None
    interrupt: KeyboardInterrupt | None = None


def conclude_run(
    spec: RunSpec, checkup: Checkup, evidence: Evidence, memory: MemoryBefore, notes: Notes, began: float | None
) -> RunConclusion:
    """Decide the outcome; check the GPUs, and explain the run if it did not complete.

    `began`: when the run began, as in `RunSpec.now_awake`. None where the user interrupted the run, and should not have
    to wait for checks.
    """
    if evidence.stopped_by == "host":
        with notes.tolerated("noting that the GPUs can no longer be used"):
            after_unkillable(checkup)
    explanation = None
    outcome, evidence = _decided(spec, evidence)
    if evidence.stopped_by == "unhealthy":
        return RunConclusion(outcome, evidence, None)
    completed = outcome.name == "completed"
    if not completed and began is None:
        return RunConclusion(outcome, evidence, None)
    try:
        with open_to_interruption():
            with notes.tolerated("checking the GPUs after the run"):
                since = spec.now_awake if began is None else began
                if completed:
                    problems = after_completion(checkup, since)
                else:
                    unkillable = evidence.stopped_by == "host"
                    problems = after_failure(checkup, memory, since, unkillable=unkillable)
                if problems and is_wrong(outcome.diagnosis, has_result=evidence.result is not None):
                    # The record will name the GPU, and nothing may be resumed from all the same.
                    evidence = replace(evidence, steps_accounted=())
                evidence = replace(evidence, host_problems=problems)
            if not completed:
                outcome, evidence = _decided(spec, evidence)
                with notes.tolerated("explaining it"):
                    explanation = explain_run(spec.folder, spec.intent, outcome, evidence.exits)
    except KeyboardInterrupt as caught:
        # A probe may just have been started and not be noted yet.
        with notes.tolerated("ending what it left"):
            end_processes_of_run(spec.folder.path, GRACE_SECONDS)
        # The run itself had ended before, so its outcome stays.
        notes.append(f"the post-run checks were stopped by {caught or 'Ctrl-C'}")
        return RunConclusion(outcome, evidence, explanation, caught)
    return RunConclusion(outcome, evidence, explanation)


def _decided(spec: RunSpec, evidence: Evidence) -> tuple[Outcome, Evidence]:
    """Return the outcome, and the evidence; where nothing can be decided, the evidence of a run that was stopped."""
    try:
        return decide(spec.request, evidence), evidence
    except Exception as error:
        outcome = undecided(evidence.stopped_by, cannot_be_read(error))
        stopped_by = evidence.stopped_by or "work-folder"
        return outcome, replace(evidence, stopped_by=stopped_by, stop_detail=outcome.detail)
