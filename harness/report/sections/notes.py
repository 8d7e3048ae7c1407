"""The effect of the presets of the notes compared with `plain`. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.base.wording import many
from harness.evidence.verdicts.verdict import Verdict
from harness.report.words import names
from harness.search.compare import fisher
from harness.search.sequential import BinomialCount

NOTES, CONTROL = "notes-", "plain"
# False discovery rate of the differences shown, as a fraction.
FALSE_DISCOVERIES = 0.05
SHOWN = 5


@dataclass(frozen=True)
class PresetComparison:
    """A preset of the notes compared with `plain`, all else equal.

    `p`: the p-value, adjusted for the number of comparisons.
    `possible`: the smallest p-value that these numbers of runs could give, adjusted in the same way.
    """

    notes: Verdict
    plain: Verdict
    p: float
    possible: float

    @property
    def shown(self) -> bool:
        """Return whether the difference is significant."""
        return self.p <= FALSE_DISCOVERIES


def compare_notes(verdicts: Iterable[Verdict]) -> list[PresetComparison]:
    """Compare every preset of the notes with `plain` on the same stack, workload, host, executor and scope.

    The test is Fisher's exact test of passed and other runs, two-sided, adjusted after Benjamini and Hochberg (1995).
    """
    counted = [verdict for verdict in verdicts if verdict.runs and not verdict.stale]
    plain = {_like(verdict): verdict for verdict in counted if verdict.preset == CONTROL}
    pairs = [(v, plain[_like(v)]) for v in counted if v.preset.startswith(NOTES) and _like(v) in plain]
    if not pairs:
        return []
    # Imported here because SciPy takes a second to import, and is not needed without presets of the notes.
    from scipy.stats import false_discovery_control  # noqa: PLC0415

    adjusted = false_discovery_control([_p(a.passes, a, b.passes, b) for a, b in pairs])
    # The largest possible difference: every run with the preset completed, and no run without it.
    possible = false_discovery_control([_p(a.runs, a, 0, b) for a, b in pairs])
    return [PresetComparison(a, b, float(p), float(q)) for (a, b), p, q in zip(pairs, adjusted, possible, strict=True)]


def what_the_notes_changed(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the comparisons in sentences."""
    comparisons = compare_notes(verdicts)
    if not comparisons:
        return (
            "Not tested: no preset of the notes was run along with `plain` on the same stack, workload and host. "
            "`matrix run --selection notes` runs them.",
        )
    differ = sorted((one for one in comparisons if one.shown), key=lambda one: one.p)
    said = [_in_words(one) for one in differ[:SHOWN]]
    if more := differ[SHOWN:]:
        presets = sorted({one.notes.preset for one in more})
        said.append(f"A difference is shown in {many(len(more), 'more comparison')}, of {names(presets)}.")
    rest = [one for one in comparisons if not one.shown]
    if rest:
        presets = sorted({one.notes.preset for one in rest})
        tested = "Fisher's exact test" if len(comparisons) == 1 else "Fisher's exact test, adjusted for their number"
        said.append(
            f"No difference shown for {names(presets)} against `plain` in {many(len(rest), 'comparison')} "
            f"(minimum p-value {min(one.p for one in rest):.2g}; {tested})."
        )
    blind = sum(one.possible > FALSE_DISCOVERIES for one in rest)
    if blind:
        said.append(
            f"In {blind} of {many(len(comparisons), 'comparison')} there are too few runs to show even that one always "
            "completes and the other never."
        )
    if all(one.notes.device == "cpu" for one in comparisons):
        said.append("All of this ran on CPUs, where variables of ROCm do nothing: it says nothing about GPUs.")
    return tuple(said)


def _in_words(one: PresetComparison) -> str:
    a, b = one.notes, one.plain
    more = "more" if a.passes * b.runs > b.passes * a.runs else "less"
    return (
        f"`{a.preset}` completed {more} often than `plain` on `{a.stack}` (`{a.scope}`, workload `{a.workload}`): "
        f"{a.passes} of {a.runs} against {b.passes} of {b.runs}, p = {one.p:.2g}."
    )


def _p(passes: int, one: Verdict, other_passes: int, other: Verdict) -> float:
    return fisher(BinomialCount(passes, one.runs), BinomialCount(other_passes, other.runs))


def _like(verdict: Verdict) -> tuple[str, ...]:
    return verdict.stack, verdict.workload_hash, verdict.host_kind, verdict.executor, verdict.scope
