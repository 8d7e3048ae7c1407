"""Runs one check after another, and draws the conclusion from all results."""

from collections.abc import Callable, Iterator, Sequence

from vpoc.probes.check import NO_DEVICE, PASSED, SKIPPED, Check, CheckResult
from vpoc.probes.run_one import run_check


def run_checks(
    checks: Sequence[Check],
    device: str,
    limit_scale: float,
    interrupted: Callable[[], bool],
    before: Callable[[Check], None],
    spare: float | None = None,
) -> Iterator[CheckResult]:
    """Run the `checks` in turn; call `before` with each check before it. Stop when `interrupted` becomes true.

    A broken check does not end the probe, unless no later one can work: it is essential, or its process cannot be
    killed and may hold the device. Then the later checks are skipped. `spare`: as in Site.
    """
    why_not = None
    for check in checks:
        if interrupted():
            return
        if why_not is not None:
            yield CheckResult(check.name, SKIPPED, 0.0, check.limit_s * limit_scale, why_not)
            continue
        before(check)
        result = run_check(check, device, limit_scale, interrupted, spare)
        if result is None:
            return
        if result.broken and check.essential:
            why_not = f"not tried: nothing works without the check {check.name}, which broke"
        elif not result.killable:
            why_not = f"not tried: a process of the check {check.name} cannot be killed and may hold the device"
        yield result


def exit_code(results: Sequence[CheckResult]) -> int:
    """Return 0 when all checks passed or were skipped, 3 when there is no such device, else 1."""
    broken = [result for result in results if result.broken]
    if any(result.exit_code == NO_DEVICE for result in broken):
        return NO_DEVICE
    return 1 if broken else 0


def conclusion(results: Sequence[CheckResult], checks: Sequence[Check], device: str) -> str:
    """Return one or two sentences on where the stack breaks, if it does."""
    shows = {check.name: check.shows for check in checks}
    passed = sum(result.outcome == PASSED for result in results)
    skipped = sum(result.outcome == SKIPPED for result in results)
    counts = f"{passed} of {len(checks)} checks passed, {skipped} skipped"
    broken = [result for result in results if result.broken]
    if not broken:
        return f"{counts}; nothing broke on {device}."
    first, *others = broken
    text = (
        f"This stack breaks on {device} at the check {first.check} ({shows[first.check]}): {first.outcome}. {counts}."
    )
    if others:
        text += f" Also broken: {', '.join(result.check for result in others)}."
    return text
