"""Finds how small a part of a failed run still fails: of its data, its steps or its shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.wording import many
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.controls.comparisons import hold_campaign_lock
from harness.campaign.controls.shrink import FailedRun, Over, ShrinkingRuns, SmallerRun, bench_of_search, steps_of
from harness.campaign.recovery import close_leftovers
from harness.matrix.refusals import FEWEST_SESSIONS
from harness.matrix.workloads import Workload
from harness.run.data_parts import DataChunks, read_chunks
from harness.search.belief import RATE_PRIOR
from harness.search.least_failing import NEVER_AGAIN, BudgetSpentError, LeastFailing, least_failing
from harness.search.smallest_part import PartOutcome, SmallestPart, smallest_part

# How many different numbers of steps a search over steps tells apart.
LEVELS = 500


@dataclass(frozen=True)
class Shrunk:
    """The result of a search.

    Attributes:
        whole: what the failed run had, in words.
        smallest: the smallest part that still fails, in words; None if nothing was found.
        rate: the share of runs of it that fail, as far as the runs tell.
        others: runs that failed in a different way, or whose data could not be trained on; they count as not failed.
        notes: sentences on what was seen besides.
        file: the smallest part of the data.
        options: the options that change the workload into the smallest one.
    """

    over: Over
    conclusion: PartOutcome
    whole: str
    smallest: str | None
    rate: float | None
    runs: int
    others: int
    results: Path
    notes: tuple[str, ...] = ()
    file: Path | None = None
    options: tuple[tuple[str, object], ...] = ()


def shrinking_runs(over: Over, bench: Bench, failed: FailedRun, max_runs: int, display: Display) -> ShrinkingRuns:
    """Return what makes the runs of a search, at most `max_runs`, once the cell of the failed run is ready.

    Raises:
        UserError: when the cell cannot be made ready, or the data cannot be read.
    """
    # What a killed harness left in the main results folder may still hold the GPU that this search waits for.
    close_leftovers(bench, display)
    bench.make_ready(failed.cell, failed.workload, display)
    own, name = bench_of_search(bench, over, failed)
    chunks = read_chunks(failed.data) if over == "data" else None
    return ShrinkingRuns(own, failed, name, chunks, max_runs, display)


def shrink(over: Over, runs: ShrinkingRuns) -> Shrunk:
    """Search for the smallest part that still fails; the same question asked again continues where the search stopped.

    The records are the memory of the search: its questions follow from the answers, so the runs that it asked for
    before are found by their ids. A later call may allow more runs.

    Raises:
        UserError: when nothing can be left out, another process makes these runs, or a GPU or the host fails.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    search = {"data": _over_data, "steps": _over_steps, "shape": _over_shape}[over]
    close_leftovers(runs.bench, runs.display)
    with hold_campaign_lock(runs.bench, runs.name):
        return search(runs)


def _over_data(runs: ShrinkingRuns) -> Shrunk:
    chunks = runs.chunks
    assert chunks is not None
    workload = runs.failed.workload
    # The first sessions only feed the features. Every part needs as many sessions before it, so they are not searched.
    before = workload.lookback if chunks.are_sessions else 0
    fewest = FEWEST_SESSIONS[workload.rows] if chunks.are_sessions else 1
    units = len(chunks) - before
    if units <= fewest:
        raise UserError(f"{runs.failed.data}: {len(chunks)} sessions, of which {before} only feed the features: as few "
                        "as can be trained on")  # fmt: skip

    def passed(part: tuple[int, int]) -> bool:
        return not runs.end(SmallerRun(workload, (part[0], part[1] + before))).failed

    found = smallest_part(units, passed, runs.max_runs, fewest, runs.display.step)
    file = None
    if found.part and found.conclusion == "found":
        file = runs.part_file("part")
        chunks.write(found.part[0], found.part[1] + before, file)
    return Shrunk(
        over="data",
        conclusion=found.conclusion,
        whole=_count(units, chunks),
        smallest=_part_in_words(found.part, chunks, before) if found.part else None,
        rate=found.rate,
        runs=found.runs,
        others=runs.others + runs.refused,
        results=runs.bench.results.folder,
        notes=tuple(_notes_on_data(found, fewest)),
        file=file,
    )


def _count(units: int, chunks: DataChunks) -> str:
    return f"{units:,} {'sessions' if chunks.are_sessions else 'parts of the rows'}"


def _part_in_words(part: tuple[int, int], chunks: DataChunks, before: int) -> str:
    first, last = part[0] + before, part[1] + before - 1
    names = chunks.names[first] if first == last else f"{chunks.names[first]} to {chunks.names[last]}"
    lookback = f", with the {before} before it that feed the features" if before else ""
    return f"{_count(part[1] - part[0], chunks)} ({names}){lookback}"


def _notes_on_data(found: SmallestPart, fewest: int) -> list[str]:
    notes = []
    if found.conclusion == "not-localised":
        notes.append("It is not in one part of the data: the first part fails, and so does what comes after it.")
    elif found.part and found.conclusion == "found":
        if found.part[1] - found.part[0] > fewest:
            notes.append("It is not in one place: neither the first nor the last of these can be left out.")
        if found.rest_too:
            notes.append("What comes after it fails as well: leave this out and minimise again.")
        elif found.rest_too is False:
            notes.append("What comes after it does not fail, nor what comes before it.")
    return notes


def _over_steps(runs: ShrinkingRuns) -> Shrunk:
    workload, seen = runs.failed.workload, steps_of(runs.failed.record) or 0
    # The step that failed was not reported, so include one more. The last level is a run that is not ended early.
    numbers = _thinned(seen + 1)

    def fails(level: int) -> int | None:
        most = numbers[level] if level < len(numbers) else None
        ended = runs.end(SmallerRun(workload, most_steps=most))
        if not ended.failed:
            return None
        if ended.steps is None:
            return level
        return next((one for one, number in enumerate(numbers) if number > ended.steps), len(numbers))

    # The best guess is the number of steps after which the run failed first.
    levels = len(numbers) + 1
    prior = [0.4 / levels] * levels + [NEVER_AGAIN]
    prior[len(numbers) - 1] += 0.5
    found = _search(lambda: least_failing(levels, fails, prior=prior))
    whole = f"{many(seen, 'step')}, after which it failed" if seen else "a run that failed before a step was reported"
    smallest = None
    if found and found.level is not None:
        most = many(numbers[min(found.level, len(numbers) - 1)], "step")
        some = most if found.level < len(numbers) else f"more than {most}"
        smallest = f"{some}, as its progress tells them (once a second)"
    return _of_levels("steps", runs, found, whole, smallest)


def _over_shape(runs: ShrinkingRuns) -> Shrunk:
    whole = runs.failed.workload
    batches = [whole.model_copy(update={"batch_size": size}) for size in _halved(whole.batch_size)]
    found = _search(lambda: _smallest_of(batches, runs, RATE_PRIOR))
    smallest = None
    if found and found.level is not None:
        smallest = batches[found.level]
        if len(models := smaller_models(smallest)) > 1:
            rates = found.rates
            found = _search(lambda: _smallest_of(models, runs, rates))
            smallest = None if found is None or found.level is None else models[found.level]
    words = None if smallest is None else runs.words(SmallerRun(smallest))
    shrunk = _of_levels("shape", runs, found, runs.words(SmallerRun(whole)), words)
    return shrunk if smallest is None else replace(shrunk, options=_changes(whole, smallest))


def _smallest_of(workloads: Sequence[Workload], runs: ShrinkingRuns, rates: Sequence[float]) -> LeastFailing:
    """Search workloads, given smallest first, for the smallest that still fails."""
    return least_failing(
        len(workloads), lambda level: level if runs.end(SmallerRun(workloads[level])).failed else None, rates=rates
    )


def _search(search: Callable[[], LeastFailing]) -> LeastFailing | None:
    """Return what a search finds; None if the allowed runs did not suffice."""
    try:
        return search()
    except BudgetSpentError:
        return None


def _of_levels(over: Over, runs: ShrinkingRuns, found: LeastFailing | None, whole: str, smallest: str | None) -> Shrunk:
    conclusion: PartOutcome = "found" if smallest else "not-enough-runs" if found is None else "not-seen-again"
    rate = found.rate if found and smallest else None
    return Shrunk(over, conclusion, whole, smallest, rate, runs.runs, runs.others, runs.bench.results.folder)


def _changes(whole: Workload, smaller: Workload) -> tuple[tuple[str, object], ...]:
    was, now = whole.model_dump(mode="json"), smaller.model_dump(mode="json")
    return tuple((name, value) for name, value in now.items() if value != was[name])


def _thinned(most: int) -> list[int]:
    """Return numbers from 1 to `most`: all of them, or LEVELS of them at even distances."""
    if most <= LEVELS:
        return list(range(1, most + 1))
    return sorted({max(1, round(most * level / LEVELS)) for level in range(1, LEVELS + 1)})


def _halved(size: int) -> list[int]:
    """Return a size and its halves down to 1, the smallest first."""
    sizes = [size]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes[::-1]


def smaller_models(workload: Workload) -> list[Workload]:
    """Return a workload and variants of it with ever smaller models, smallest first.

    Of several models only the main one is kept, `attention` becomes the small one, and `mlp` has its layers halved down
    to one unit.
    """
    made = [workload]
    if len(workload.model) > 1:
        made.append(made[-1].model_copy(update={"model": workload.model[-1:]}))
    if made[-1].model == ("attention",):
        made.append(made[-1].model_copy(update={"model": ("attention-small",)}))
    while "mlp" in made[-1].model and max(made[-1].hidden_layers) > 1:
        half = tuple(max(1, size // 2) for size in made[-1].hidden_layers)
        made.append(made[-1].model_copy(update={"hidden_layers": half}))
    return made[::-1]
