"""Decides the outcome from request and evidence. Pure, and the only place that does so; logs play no part."""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harness.base.contract import CONTRACT
from harness.base.wording import many
from harness.environments.executors.job import SHELL_SIGNALS
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import OutcomeName
from harness.evidence.outcome.diagnoses import BREACH, ENDED_FROM_OUTSIDE, Diagnosis, StoppedBy
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.outcome.program_objections import program_in_words, program_objections
from harness.evidence.outcome.request import Request
from harness.evidence.outcome.result_objections import memory_objections, result_objections
from harness.evidence.outcome.verification_objections import verification_objections

# Exit codes by which the app reports what it saw: numbers that are not finite; ranks with different weights.
APP_EXITS: Mapping[int, Diagnosis] = {4: "not-finite", 5: "wrong-result"}
# The exit code of the app, and of the library that parses its options, for a command that asks for the impossible.
REFUSAL_EXIT = 2
UNVERIFIED = "old contract, not verified: nothing shows that the result is this run's, and it qualifies for nothing"
NOT_INDEPENDENTLY = "not verified independently, so it qualifies for nothing"
# Begins the `injected_fault` of an attempt that follows the attempt into which the fault was injected.
AFTER_FAULT = "after "


@dataclass(frozen=True)
class Outcome:
    """The outcome, its diagnosis (None for `completed`) and one line of detail."""

    name: OutcomeName
    diagnosis: Diagnosis | None
    detail: str


def decide(request: Request, evidence: Evidence) -> Outcome:
    """Return the outcome: `completed` only if nothing speaks against it, and never if the run met an injected fault."""
    outcome = _decide(request, evidence)
    if evidence.host_problems and outcome.name != "completed":
        found = "; ".join(evidence.host_problems)
        diagnosis = outcome.diagnosis if outcome.name == "host-fault" else "unhealthy-gpu"
        outcome = Outcome("host-fault", diagnosis, f"{found}; the run itself: {_in_short(outcome)}")
    fault = request.injected_fault
    if fault is None:
        return outcome
    if outcome.name == "completed" and never_meets(request.resumed, fault):
        kind = fault.removeprefix(AFTER_FAULT)
        detail = f"{outcome.detail}; it comes after the injected fault {kind}, so it does not count"
        return replace(outcome, detail=detail)
    if outcome.name == "completed":
        return Outcome("failed", "injected-fault", f"the injected fault {fault} was not noticed: {outcome.detail}")
    return replace(outcome, detail=f"{outcome.detail}; fault injected on purpose: {fault}")


def undecided(stopped_by: StoppedBy | None, detail: str) -> Outcome:
    """Return the outcome of a run from which nothing else can be concluded, without anything that the app wrote."""
    return Outcome(*ENDED_FROM_OUTSIDE[stopped_by or "work-folder"], detail)


def never_meets(resumed: tuple[int, ...], fault: str) -> bool:
    """Return whether an attempt never meets a fault, so that there is nothing to notice.

    Either the fault was injected into an earlier attempt (AFTER_FAULT), or the training resumed at or behind the step
    of `KIND@STEP`.
    """
    step = fault.partition("@")[2].partition("/")[0]
    return fault.startswith(AFTER_FAULT) or (any(resumed) and step.isdigit() and int(step) <= min(resumed))


def stands_so_far(request: Request, evidence: Evidence) -> bool:
    """Return whether nothing speaks against a run yet; only the verification is still missing."""
    return _decide(replace(request, not_verified="not yet"), evidence).name == "completed"


def _decide(request: Request, evidence: Evidence) -> Outcome:
    if evidence.stopped_by is not None:
        breach = BREACH if evidence.stopped_by == "breach" else ""
        return Outcome(*ENDED_FROM_OUTSIDE[evidence.stopped_by], f"{breach}{evidence.stop_detail}")
    for phase, exit_ in evidence.exits.items():
        if not exit_.ok and exit_.out_of_memory:
            killed = "the process" if exit_.code == -signal.SIGKILL else "a process it had started"
            detail = f"{killed} was killed at the container's memory limit; the {phase} process ended with {exit_}"
            return Outcome("failed", "out-of-memory", detail)
        if not exit_.ok:
            crash = exit_.code < 0 or exit_.code > SHELL_SIGNALS
            own = APP_EXITS if request.program is None else {}
            diagnosis: Diagnosis = "crash" if crash else own.get(exit_.code, "app-error")
            ended = f"the {phase} process ended with {exit_}"
            if evidence.no_kernels and diagnosis in ("crash", "app-error"):
                return Outcome("failed", "missing-arch", f"{evidence.no_kernels}; {ended}")
            if exit_.code == REFUSAL_EXIT and _made_no_step(evidence):
                return Outcome("failed", "refused", f"{ended} before its first step")
            return Outcome("failed", diagnosis, ended)
    if tuple(evidence.exits) != request.phases:
        return Outcome("failed", "no-result", f"of {', '.join(request.phases)} only {len(evidence.exits)} were run")
    if evidence.leftovers:
        return Outcome("failed", "work-folder", evidence.leftovers)
    if request.program and evidence.program:
        for diagnosis, detail in program_objections(request, evidence, evidence.program):
            return Outcome("failed", diagnosis, detail)
        return Outcome("completed", None, program_in_words(request.program, evidence.program))
    if evidence.result is None:
        return Outcome("failed", "no-result", f"exit 0, but {evidence.result_problem}")
    for diagnosis, detail in _objections(request, evidence, evidence.result):
        return Outcome("failed", diagnosis, detail)
    done = [f"{many(told.epochs_done, 'epoch')}, {many(told.steps_done, 'step')}" for told in evidence.result.trainings]
    return Outcome("completed", None, f"{', then '.join(done)}{_how_verified(request, evidence)}")


def _made_no_step(evidence: Evidence) -> bool:
    """Return whether progress shows that no step was made; without an account of steps it cannot show that."""
    if evidence.program is not None:
        return not evidence.program.advances or evidence.program.at_once
    unread = evidence.steps_accounted is None or evidence.breaches or evidence.leftovers
    return not unread and not any(evidence.steps_accounted or ())


def _objections(request: Request, evidence: Evidence, result: Result) -> Iterator[tuple[Diagnosis, str]]:
    """Yield everything that speaks against a run that ended by itself with a result, the gravest first."""
    # Where the memory speaks against a run it is not verified, so that the verification comes last.
    for objections in (result_objections, memory_objections, verification_objections):
        yield from objections(request, evidence, result)


def _how_verified(request: Request, evidence: Evidence) -> str:
    if request.contract != CONTRACT:
        return f"; {UNVERIFIED}"
    why_not = request.not_verified or evidence.not_verified
    if why_not:
        return f"; {NOT_INDEPENDENTLY}: {why_not}"
    # Steps of the runs before it cannot be made again.
    before = evidence.result.done_before(request.resumed) if evidence.result else ()
    return f", verified from step {max(before)} on" if any(before) else ", verified"


def _in_short(outcome: Outcome) -> str:
    return f"{outcome.name} ({outcome.diagnosis}), {outcome.detail}" if outcome.diagnosis else outcome.detail
