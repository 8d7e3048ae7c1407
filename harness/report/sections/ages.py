"""Failures by the age of the run: how long trainings lasted in each cell. Pure."""

from collections.abc import Iterable, Mapping

from harness.base.wording import many
from harness.evidence.verdicts.survival import survival
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import hours_in_words
from harness.report.model import FailureAges
from harness.report.sections.grid import Key, key_of
from harness.report.words import at_least, at_most, share

# Most curves drawn; nobody looks at more.
DRAWN = 6
# Size of a curve, in units of its SVG picture.
WIDTH, HEIGHT = 320, 120


def failure_ages(
    verdicts: Iterable[Verdict], ids: Mapping[Key, str], works: Mapping[str, str], confidence: float
) -> tuple[FailureAges, ...]:
    """Return how long the trainings of each verdict that is not stale lasted, verdicts with failures first.

    `ids`: the ids of the groups.
    `works`: the workload of each group, in words.

    Only the first verdicts with failures, those with the most hours, get a curve.
    """
    known = [one for one in verdicts if not one.stale and one.totals.lives]
    in_order = sorted(known, key=lambda one: (one.totals.failures == 0, -one.totals.hours, one.cell))
    groups = [ids[key_of(one)] for one in in_order]
    told = zip(in_order, groups, strict=True)
    return tuple(_ages(one, group, works[group], confidence, drawn=n < DRAWN) for n, (one, group) in enumerate(told))


def _ages(verdict: Verdict, group: str, work: str, confidence: float, *, drawn: bool) -> FailureAges:
    totals = verdict.totals
    points = survival(totals.lives, confidence)
    failed = sorted(life.hours for life in totals.lives if life.failed)
    runs, longest = many(len(totals.lives), "run"), hours_in_words(totals.lengths[0])
    where = f"`{verdict.cell}` ({verdict.scope}, workload {work}, {verdict.executor})"
    if not failed:
        said = f"{where}: no failure in {hours_in_words(totals.hours)}, {runs}, the longest {longest}"
    else:
        first, last = hours_in_words(failed[0]), hours_in_words(failed[-1])
        ages = f"at {first}" if len(failed) == 1 else f"between {first} and {last}"
        counted = many(len(failed), "failure")
        said = (
            f"{where}: {counted} in {hours_in_words(totals.hours)}, {ages} of training; {runs}, the longest {longest}"
        )
    if totals.longest * 3600 >= 1:
        # The age that the claim is about: at least three runs are as long.
        at = [point for point in points if point.hours < totals.longest][-1]
        band = f"{at_least(at.low)} to {at_most(at.high)}, with {share(confidence)}"
        said += f"; {at_least(at.share)} ({band}) reach {hours_in_words(totals.longest)}"
    curve = points if drawn and failed else ()
    return FailureAges(
        group=group,
        cell=verdict.cell,
        said=f"{said}.",
        failures=len(failed),
        hours=tuple(round(point.hours, 4) for point in curve),
        share=tuple(round(point.share, 4) for point in curve),
        low=tuple(round(point.low, 4) for point in curve),
        high=tuple(round(point.high, 4) for point in curve),
    )


def steps(ages: FailureAges, values: tuple[float, ...], *, back: bool = False) -> str:
    """Return the corners of a step line: each value holds until the next age; `back` lists them from last to first."""
    longest = ages.hours[-1] or 1.0
    corners: list[tuple[float, float]] = []
    for number, (hours, value) in enumerate(zip(ages.hours, values, strict=True)):
        x, y = hours / longest * WIDTH, (1 - value) * HEIGHT
        if number:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (reversed(corners) if back else corners))
