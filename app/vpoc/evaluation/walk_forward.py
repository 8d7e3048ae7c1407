"""Divides sessions into training and test: expanding walk-forward with purge, embargo and a held-out end."""

from dataclasses import dataclass

from vpoc.errors import UserError

FEWEST_FOLDS = 3
FEWEST_TRAINING = 8
"""Fewest training sessions; with fewer, a fold says nothing."""


@dataclass(frozen=True)
class Fold:
    """Sessions by number, in order of time: [0, train_stop) train, [start, stop) test, those between are left out."""

    train_stop: int
    start: int
    stop: int


@dataclass(frozen=True)
class Lengths:
    """Numbers of sessions: that train before the first test block, of a test block, held out, and of the embargo."""

    first: int = 500
    block: int = 63
    held_out: int = 126
    embargo: int = 5


@dataclass(frozen=True)
class Plan:
    """The folds of an evaluation.

    `folds`: the folds that test in turn.
    `held_out`: the fold that tests once at the end.
    `lengths`: the lengths used.
    `lowered`: why they are not the requested ones; None if they are.
    """

    folds: tuple[Fold, ...]
    held_out: Fold
    lengths: Lengths
    lowered: str | None


def plan(sessions: int, asked: Lengths, reach: int) -> Plan:
    """Return the folds of `sessions` sessions with labels that look `reach` sessions beyond their own.

    The windows of all training labels end at least `asked.embargo` sessions before the test block begins: with `reach`
    1, sessions 0 .. start - embargo - 2 train. The first three lengths are lowered in proportion if there are too few
    sessions for three blocks; a last block shorter than half a block is joined to the one before. UserError when fewer
    than 8 sessions would train in the first fold.
    """
    used, lowered = _fitted(sessions, asked)
    gap = reach + used.embargo
    if used.first - gap < FEWEST_TRAINING:
        raise UserError(
            f"{sessions} sessions have a label: of the {used.first} before the first test block, {reach} are purged, "
            f"{used.embargo} left out by --embargo and {max(used.first - gap, 0)} train, where {FEWEST_TRAINING} must; "
            "give more data, a larger --first-sessions or a smaller --embargo"
        )
    end = sessions - used.held_out
    starts = list(range(used.first, end, used.block))
    if len(starts) > FEWEST_FOLDS and 2 * (end - starts[-1]) < used.block:
        starts.pop()
    stops = [*starts[1:], end]
    folds = tuple(Fold(start - gap, start, stop) for start, stop in zip(starts, stops, strict=True))
    return Plan(folds, Fold(end - gap, end, sessions), used, lowered)


def _fitted(sessions: int, asked: Lengths) -> tuple[Lengths, str | None]:
    wanted = asked.first + FEWEST_FOLDS * asked.block + asked.held_out
    if sessions >= wanted:
        return asked, None
    share = sessions / wanted
    block, held_out = max(1, int(asked.block * share)), max(1, int(asked.held_out * share))
    first = max(0, min(asked.first, sessions - held_out - FEWEST_FOLDS * block))
    reason = (
        f"{sessions} sessions have a label, and {asked.first} to train first, {FEWEST_FOLDS} blocks of {asked.block} "
        f"and {asked.held_out} held out need {wanted}; lowered in proportion to {first}, {block} and {held_out}"
    )
    return Lengths(first, block, held_out, asked.embargo), reason
