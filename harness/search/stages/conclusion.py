"""Concludes how a campaign in stages ended, in a sentence. Pure."""

from collections.abc import Collection, Mapping, Sequence

from harness.base.wording import many, some_of
from harness.evidence.verdicts.recommend import NamedCell
from harness.evidence.verdicts.words import hours_in_words, in_words, shows_mtbf
from harness.search.conclusion import Conclusion, nothing_fits
from harness.search.schedule import EndReason
from harness.search.stages.contenders import Contender
from harness.search.stages.search import StageEnd, StageEndReason

# Longest list of stacks in a sentence; a longer one is cut.
_LISTED = 3
_NOT_MADE = "they could not be made or had no room"
# Hours from which a run counts as long.
LONG_HOURS = 0.5
_WHY: Mapping[StageEndReason, EndReason] = {
    "good": "reached",
    "none": "exhausted",
    "out-of-time": "out-of-time",
    "gpu-lost": "exhausted",
}


def conclude_stages(
    end: StageEnd,
    gpus: int,
    left_out: Collection[str] = (),
    screened: Sequence[int] = (),
    least_budget: float | None = None,
    unanswered: Collection[str] = (),
) -> Conclusion:
    """Conclude a campaign that used `gpus` GPUs.

    - `left_out`: stacks that could not be made.
    - `screened`: GPUs that runs were not to use, because a screen is connected to them.
    - `least_budget`: as in `Conclusion`.
    - `unanswered`: those of `left_out` whose source did not answer.
    """
    best = end.best
    good = best if best and best.is_good else None
    several = f" on {gpus} GPUs" if gpus > 1 else ""
    named = good or (_nearest(end) if end.why == "out-of-time" else None)
    begun = {one.stack for one in end.explored} - {*end.untried} or end.contenders
    if least_budget and not begun:
        sentence = nothing_fits(least_budget, "first")
    elif good and (len(good.gpus) == gpus or end.why == "good"):
        # A GPU that fails what another passes is left out, and the campaign ends with what the others show.
        on_one = "On one GPU " if len(good.gpus) == 1 < gpus else ""
        sentence = f"{on_one}{_named(good)} is good: {_shown(good)}."
    else:
        missing = _not_found(end, several, all_made=not left_out)
        sentence = f"{missing} On one GPU {_named(good)} is good: {_shown(good)}." if good else missing
    silent = sorted({*left_out} & {*unanswered})
    others = sorted({*left_out} - {*unanswered})
    for stacks, why in ((silent, "their source of packages did not answer"), (others, _NOT_MADE)):
        sentence += f" Left out, because {why}: {some_of(stacks, _LISTED)}." if stacks else ""
    if screened:
        sentence += (
            f" What trains on {gpus + len(screened)} GPUs stays unknown: a screen is connected to GPU "
            f"{', '.join(map(str, screened))}, and no run was to use it (`--use-screen-gpu`, or move the screen to the "
            "processor's own graphics)."
        )
    if unverified := [_named(one) for one in end.contenders if one.unverified]:
        sentence += (
            f" The runs of {some_of(unverified, _LISTED)} were not verified, and count for nothing: `matrix status "
            "CELL` says why."
        )
    if end.not_begun and end.why != "good":
        sentence += (
            f" Runs of {some_of(end.not_begun, _LISTED)} were asked for several times and not begun: `matrix status "
            "CELL` says why; the same command tries them again."
        )
    if least_budget and begun:
        sentence += f" {nothing_fits(least_budget)}"
    for gpu in end.lost_gpus:
        sentence += f" GPU {gpu} is unhealthy and takes no runs until that is fixed: `matrix doctor`."
    for gpu in end.bad_gpus:
        sentence += (
            f" GPU {gpu} failed what another GPU passed, too often for chance: `matrix doctor`, or swap the two."
        )
    return Conclusion(
        why=_WHY[end.why],
        reached=end.why == "good",
        sentence=sentence,
        continues=end.why in ("out-of-time", "gpu-lost") or (end.why == "none" and bool(left_out or end.not_begun)),
        standings={
            _named(one): "good" if one.is_good else "failing" if one.failures else "open" for one in end.contenders
        },
        named=NamedCell(named.setting.cell.id, named.setting.strategy) if named else None,
        least_budget=least_budget,
    )


def _named(one: Contender) -> str:
    used = f" on {len(one.gpus)} GPUs ({one.setting.strategy})" if len(one.gpus) > 1 else ""
    options = one.setting.changed_options
    return f"{one.setting.cell.id}{used}{f' with {options}' if options else ''}"


def _shown(one: Contender) -> str:
    mtbf, said = one.totals.mtbf(one.confidence), in_words(one.totals)
    if not shows_mtbf(mtbf):
        return said
    bound = f"above {hours_in_words(mtbf)} with {one.confidence:.3g} confidence"
    return f"{said}; its mean time between failures is {bound}"


def _not_found(end: StageEnd, several: str, *, all_made: bool) -> str:
    had_turn = [one for one in end.explored if one.stack not in end.untried]
    nearest = _nearest(end)
    tried = f"{many(len(had_turn), 'stack had its', 'stacks had their')} turn"
    untried = f", {len(end.untried)} not ({some_of(end.untried, _LISTED)})" if end.untried else ""
    said = f"{tried}{untried}"
    if end.why in ("none", "gpu-lost"):
        over = ", and nothing of the selection is left to try" if end.why == "none" else ""
        over += " but what is left out" if over and not all_made else ""
        return f"No cell is shown to be good{several}{over}: {said}.{_lasted_longest(end)}"
    if nearest is None:
        return f"The time is over and no cell is shown to be good{several}: {said}."
    lacking = f"{nearest.missing.in_words} without a failure"
    return (
        f"The time is over and no cell is shown to be good{several} yet: nearest is {_named(nearest)} "
        f"({in_words(nearest.totals)}), which lacks {lacking}; {said}.{_lasted_longest(end)}"
    )


def _nearest(end: StageEnd) -> Contender | None:
    return next((one for one in end.contenders if not one.is_good), None)


def _lasted_longest(end: StageEnd) -> str:
    """Return the contender that lasted longest, in words, if all that trained for long failed; otherwise empty."""
    long = [one for one in end.contenders if one.totals.lives and one.totals.lives[0].hours >= LONG_HOURS]
    if not long or any(not one.totals.failures for one in long):
        return ""
    longest = max(long, key=lambda one: one.totals.lives[0].hours)
    return f" What trained for long failed; {_named(longest)} lasted longest, {longest.totals.lives[0].hours:.1f} h."
