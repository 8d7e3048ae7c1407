"""Rung after rung, and what all of them say together."""

from collections.abc import Callable, Iterator, Sequence

from vpoc.probes.check import NO_DEVICE, PASSED, SKIPPED, Check, CheckResult
from vpoc.probes.run_one import run_one


def run_checks(
    rungs: Sequence[Check],
    device: str,
    limit_scale: float,
    interrupted: Callable[[], bool],
    before: Callable[[Check], None],
) -> Iterator[CheckResult]:
    """Try the `rungs` in turn; `before` is told which comes next. Ends early when `interrupted` becomes true.

    A broken rung does not end the climb, unless no later one can work: it is essential, or its process cannot be
    killed and may hold the device. The later ones are skipped then.
    """
    why_not = None
    for rung in rungs:
        if interrupted():
            return
        if why_not is not None:
            yield CheckResult(rung.name, SKIPPED, 0.0, rung.limit_s * limit_scale, why_not)
            continue
        before(rung)
        trial = run_one(rung, device, limit_scale, interrupted)
        if trial is None:
            return
        if trial.broken and rung.essential:
            why_not = f"not tried: nothing works without the rung {rung.name}, which broke"
        elif not trial.killable:
            why_not = f"not tried: a process of the rung {rung.name} cannot be killed and may hold the device"
        yield trial


def exit_code(trials: Sequence[CheckResult]) -> int:
    """0 when all passed or were skipped, 3 when there is no such device, else 1."""
    broken = [trial for trial in trials if trial.broken]
    if any(trial.exit_code == NO_DEVICE for trial in broken):
        return NO_DEVICE
    return 1 if broken else 0


def conclusion(trials: Sequence[CheckResult], rungs: Sequence[Check], device: str) -> str:
    """One or two sentences on where the stack breaks, if it does."""
    shows = {rung.name: rung.shows for rung in rungs}
    passed = sum(trial.outcome == PASSED for trial in trials)
    skipped = sum(trial.outcome == SKIPPED for trial in trials)
    counts = f"{passed} of {len(rungs)} rungs passed, {skipped} skipped"
    broken = [trial for trial in trials if trial.broken]
    if not broken:
        return f"{counts}; nothing broke on {device}."
    first, *others = broken
    text = f"This stack breaks on {device} at the rung {first.rung} ({shows[first.rung]}): {first.outcome}. {counts}."
    if others:
        text += f" Also broken: {', '.join(trial.rung for trial in others)}."
    return text
