"""Chooses runs to begin at once on several nodes, although the next run depends on how they end. Pure.

Runs under way are assumed to end as expected, and then the search is asked again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import PASSED
from harness.evidence.verdicts.totals import HOUR, Life, Totals
from harness.matrix.stages import CampaignStage
from harness.matrix.workload_options import family
from harness.search.goal import Goal
from harness.search.schedule import Candidate, Next, Tally, next_run
from harness.search.stages.runs import SeenRun, SeenRuns, StageRun
from harness.search.stages.search import StageSearch


def stage_runs_at_once(
    search: StageSearch, seen: SeenRuns, first: StageRun, most: int, time_left: float | None
) -> list[StageRun]:
    """Return the next run of a campaign in stages, those beside it, and further runs of the same kind, at most `most`.

    Runs of another cell or stage are never added, so that no other cell can be the cause if a node goes down.
    """
    minutes = {stage.name: stage.minutes for stage in search.matrix.stages.values()}
    found: list[StageRun] = []
    following: object = first
    while isinstance(following, StageRun) and (following.stage, following.setting) == (first.stage, first.setting):
        now = [replace(one, beside=()) for one in (following, *following.beside)]
        found += now
        if len(found) >= most:
            break
        # A long stage also has runs of other workloads.
        passed = [_as_passed(one, seen, number, minutes) for number, one in enumerate(now)]
        seen = SeenRuns.of((*seen.runs, *passed))
        following = search.next(seen, time_left)
    return [one for one in found if one.workload == first.workload][:most]


def candidates_at_once(
    candidates: Sequence[Candidate],
    tallies: Mapping[Candidate, Tally],
    goal: Goal,
    seed: int,
    seconds: Mapping[str, float],
    most: int,
) -> list[Candidate]:
    """Return the candidates whose runs are begun now, one per run, at most `most`; see `next_run`."""
    expected, found = dict(tallies), list[Candidate]()
    while len(found) < most:
        decision = next_run(candidates, expected, goal, seed, seconds)
        if not isinstance(decision, Next):
            break
        found.append(decision.candidate)
        expected[decision.candidate] = _as_expected(expected.get(decision.candidate, Tally()))
    return found


def _as_expected(tally: Tally) -> Tally:
    """Return a tally with one more run, which ends as most of its runs did, or passes if there are none."""
    passes = 2 * tally.passes >= tally.runs
    totals = tally.totals and _one_more(tally.totals, passes=passes)
    return replace(tally, passes=tally.passes + passes, runs=tally.runs + 1, totals=totals)


def _one_more(totals: Totals, *, passes: bool) -> Totals:
    usual = totals.hours / len(totals.lives) if totals.lives else 0.0
    lives = tuple(sorted((*totals.lives, Life(usual, not passes)), reverse=True)) if usual else totals.lives
    return replace(
        totals,
        started=totals.started + (passes or bool(usual)),
        starts=totals.starts + 1,
        failures=totals.failures + (not passes and bool(usual)),
        lives=lives,
    )


def _as_passed(run: StageRun, seen: SeenRuns, number: int, minutes: Mapping[str, float]) -> SeenRun:
    """Return a run under way as a run that passed."""
    devices = max(1, len(run.gpus))
    assumed = minutes.get(run.stage, CampaignStage.model_fields["minutes"].default)
    began = max((one.row.finished for one in seen.runs), default=0.0) + 1e-3 * (number + 1)
    values: dict[str, Any] = dict.fromkeys(Row._fields)
    values |= {
        "run_id": f"under-way-{len(seen.runs) + number}",
        "cell": run.cell.id,
        "stack": run.cell.stack.name,
        "preset": run.cell.preset.name,
        "workload": run.workload.name,
        "family": family(run.workload, len(run.gpus)),
        "outcome": "completed",
        "verified": True,
        "started": began,
        "finished": began + seen.seconds_of(run.workload, devices, assumed),
        "first_step": True,
        "exposure_seconds": seen.hours_of(run.workload, devices, assumed) * HOUR,
        "machine": "",
        "boot_id": "",
        "beside": "[]",
    }
    return SeenRun(Row(**values), PASSED, tuple(sorted(run.gpus)))
