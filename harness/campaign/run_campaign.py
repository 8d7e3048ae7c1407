"""Runs or continues a prepared campaign, and reports its state."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from harness.base.errors import UserError
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.campaign import Campaign, begin_or_continue
from harness.campaign.controls.isolate import (
    FEWEST_FAILURES,
    hint,
    isolate_fault,
    plain_cells,
    question_about,
    suspects,
)
from harness.campaign.gpus.unproven import host_cause
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.planning.tallies import Tallies
from harness.campaign.reboot import INTERRUPTED_CAMPAIGN
from harness.campaign.runner import MOST_LOST_IN_A_ROW, EngineLosses, Runner
from harness.campaign.sequence.pursue import pursue_goal, with_candidates_counted
from harness.campaign.sequence.run_plan import run_plan
from harness.campaign.sequence.run_spread import run_spread
from harness.campaign.sequence.run_stages import run_stages
from harness.evidence.by_node import worst_node
from harness.evidence.host_state import settings_of
from harness.evidence.index import Index
from harness.evidence.isolations import FaultIsolation, read_isolations
from harness.evidence.row import Row
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import counts_of
from harness.evidence.verdicts.recommend import NamedCell
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.evidence.verdicts.words import UNCOMMITTED
from harness.search.conclusion import Conclusion, conclude
from harness.search.goal import Goal


@dataclass(frozen=True)
class CampaignResult:
    """The state of a campaign.

    Attributes:
        total: the number of runs; None if it was left open, and then there is a conclusion.
        succeeded: with a conclusion, whether the goal was reached; otherwise, whether every run completed.
        isolation: what the controls showed about failures.
        hint: how to find the cause of failures, if no controls were run.
        error: the error that ended the campaign early.
    """

    campaign: str
    done: int
    total: int | None
    interrupted: bool
    succeeded: bool
    conclusion: Conclusion | None
    isolation: FaultIsolation | None = None
    hint: str | None = None
    error: Exception | None = None


def run_campaign(
    prepared: PreparedCampaign, display: Display, may_reboot: Callable[[], bool] = lambda: False
) -> CampaignResult:
    """Run a plan, continuing an unfinished campaign of the same plan; return its state, also after Ctrl-C.

    After an error the state is returned with the error if there are records, because an evening's answer must not be
    lost. `may_reboot` returns whether a campaign in stages ends when a GPU is lost, because the host is rebooted then.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, or the engine is gone.
    """
    bench, plan = prepared.bench, prepared.plan
    conclusion, isolation, interrupted, error = None, None, False, None
    with begin_or_continue(plan, bench) as (campaign, continued):
        total = 0 if plan.goal else len(plan.runs)
        runner = Runner(bench, plan.workload, display, campaign.id, total, EngineLosses(MOST_LOST_IN_A_ROW))
        if continued:
            of_all = "" if plan.goal else f" of {len(plan.runs)}"
            done = len(campaign.finished_runs())
            display.notice(f"continuing campaign {campaign.id}: {done}{of_all} runs are done")
        elif before := os.environ.get(INTERRUPTED_CAMPAIGN):
            again = ", with the whole budget" if plan.goal and plan.goal.budget else ""
            display.problem(
                f"campaign {before}, which the reboot interrupted, cannot continue: the GPUs of this host, the matrix "
                f"file or the app are others now. A new campaign begins{again}"
            )
        if campaign.beside:
            display.problem(
                f"another process is making the same runs (campaign {campaign.beside}; `matrix watch` shows it): "
                "this command makes them a second time"
            )
        try:
            if prepared.stages:
                conclusion = run_stages(prepared.stages, prepared, campaign, runner, may_reboot)
            elif plan.goal:
                conclusion = _pursue(plan.goal, prepared, campaign, runner)
            else:
                if bench.dispatcher:
                    run_spread(plan, campaign, runner, bench.dispatcher)
                else:
                    run_plan(plan, campaign, runner, partial(host_cause, prepared.matrix, bench))
                isolation = _run_controls(prepared, campaign, display)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as caught:
            if not _has_records(campaign):
                raise
            error = caught
        rows = campaign.finished_runs()
        conclusion = conclusion and with_caution(
            conclusion, [*rows, *earlier_of(conclusion.named, bench, pooled=prepared.stages is not None)]
        )
        all_completed = len(rows) >= len(plan.runs) and all(row.outcome == "completed" for row in rows)
        return CampaignResult(
            campaign=campaign.id,
            done=len(rows) if plan.goal else campaign.done(plan),
            total=None if plan.goal else len(plan.runs),
            interrupted=interrupted,
            succeeded=conclusion.reached if conclusion else all_completed and not plan.goal,
            conclusion=conclusion,
            isolation=isolation,
            hint=None if isolation or interrupted or error else _hint(rows, prepared),
            error=error,
        )


def _hint(rows: Iterable[Row], prepared: PreparedCampaign) -> str | None:
    bench = prepared.bench
    return hint(rows, counts_of(bench.results), prepared.matrix, len(bench.gpus), _answers(bench))


def with_caution(conclusion: Conclusion, rows: Iterable[Row]) -> Conclusion:
    """Return a conclusion, with a warning if a run of its cell had uncommitted changes: it is then `seen` at most."""
    named = conclusion.named.cell if conclusion.named else None
    if not any(row.uncommitted for row in rows if row.cell == named):
        return conclusion
    return replace(conclusion, sentence=f"{conclusion.sentence} But {UNCOMMITTED}: `matrix status` says seen at most.")


def earlier_of(named: NamedCell | None, bench: Bench, *, pooled: bool) -> list[Row]:
    """Return the newest run of a cell here: a campaign also concludes from runs of earlier ones.

    `pooled`: return all runs in its environment, as a campaign in stages counts them together.
    """
    rows = Index(bench.results).rows() if named else []
    of_cell = [row for row in rows if named and row.cell == named.cell and not row.imported]
    newest = max(of_cell, key=lambda row: row.started, default=None)
    if newest is None or not pooled:
        return [newest] if newest else []
    return [row for row in of_cell if _where(row) == _where(newest)]


def _where(row: Row) -> tuple[str, str, str]:
    return row.environment_hash, row.executor, row.host_kind


def _has_records(campaign: Campaign) -> bool:
    """Return whether a campaign has records, as far as the index can be read."""
    with suppress(UserError, OSError):
        return any(row.campaign == campaign.id for row in Index(campaign.results).rows())
    return False


def verdicts_of_campaign(prepared: PreparedCampaign, campaign: str) -> list[Verdict]:
    """Return the verdicts on the runs of a campaign; with a goal, those on all runs of its cells."""
    results = prepared.bench.results
    if prepared.plan.goal:
        cells = {planned.cell.id for planned in prepared.plan.runs}
        if prepared.stages:
            cells |= {row.cell for row in Index(results).rows() if row.campaign == campaign}
        return [one for one in of_results.verdicts(results, prepared.matrix, prepared.bench.host) if one.cell in cells]
    rows = Index(results).rows()
    mine = [row for row in rows if row.campaign == campaign]
    return judge(
        mine,
        {},
        prepared.matrix.verdicts,
        counts_of(results, rows),
        settings=settings_of(prepared.bench.host),
    )


def _run_controls(prepared: PreparedCampaign, campaign: Campaign, display: Display) -> FaultIsolation | None:
    """Run controls if a cell failed repeatedly in ways that a GPU or the host can cause, and return their answer.

    Only the cell with the most such failures is examined: if a GPU or the host is bad, its answer holds for the others,
    and the whole error rate is spent on one question.
    """
    bench, plan = prepared.bench, prepared.plan
    if not plan.controls:
        return None
    rows = Index(bench.results).rows()
    found = suspects([row for row in rows if row.campaign == campaign.id], counts_of(bench.results, rows))
    suspect = next((one for one in found if one.failures >= FEWEST_FAILURES), None)
    if suspect is None:
        return None
    campaign.begin_controls()
    on = ""
    if bench.dispatcher and (node := worst_node([row for row in rows if row.campaign == campaign.id], suspect.cell)):
        # Controls run on the same node as the cell, because only the cell may differ.
        bench, on = replace(bench, dispatcher=bench.dispatcher.for_node(node)), f" on {node}"
    display.notice(
        f"{suspect.failures} runs of {suspect.cell} failed in a way that a GPU or the host can cause; "
        f"controls{on} tell which, {plan.controls} runs at most"
    )
    answer = None
    try:
        others = plain_cells(prepared.matrix, rows, bench.host.kind)
        question = question_about(suspect, prepared.matrix, plan.workload, bench, others)
        answer = isolate_fault(bench, question, plan.workload, display, plan.controls)
    except UserError as error:
        display.problem(f"the controls stop, and `matrix isolate {suspect.cell}` continues them: {error}")
    campaign.end("controls")
    return answer


def _answers(bench: Bench) -> list[FaultIsolation]:
    return [one for one in read_isolations(bench.results) if one.machine == bench.host.machine]


def _pursue(goal: Goal, prepared: PreparedCampaign, campaign: Campaign, runner: Runner) -> Conclusion:
    """Run until the goal is reached or out of reach, or the time is over, and conclude."""
    plan, bench = prepared.plan, prepared.bench
    tallies = Tallies(plan, bench, prepared.matrix)
    goal = with_candidates_counted(goal, plan, tallies)
    found = pursue_goal(plan, goal, campaign, runner, tallies)
    return conclude(goal, found.why, found.tallies, found.seconds)
