"""The command that goes on with what was begun on a machine: the one to type next, wherever one is named."""

from collections.abc import Sequence

from harness.campaign.answered import Command, LastAnswer, last_answer
from harness.campaign.under_way import left_under_way, under_way
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.host.processes.processes import ProcessId
from harness.report.invocation import Invocation
from harness.training.state import unfinished_trainings


def continuation(
    results: Results,
    machine: str,
    invocation: Invocation,
    rows: Sequence[Row] | None = None,
    answer: LastAnswer | None = None,
) -> Command | None:
    """Return what shows another command at work here, or else continues what did not end; None where all did.

    `rows` are those of the index, `answer` is that of the last campaign, where they were read before. A training is
    continued where the newest run of the machine is an attempt of it that was interrupted.
    """
    if any(one.process != ProcessId.mine() for one in under_way(results)):
        return Command(command=invocation.command("watch"), why="shows what runs now")
    for left in left_under_way(results, machine):
        return Command(command=left.command, why=f"continues the {left.what} that was under way")
    rows = Index(results).rows() if rows is None else rows
    if following := (answer or last_answer(results, machine, rows)).next_command:
        return following
    newest = max((row for row in rows if row.machine == machine), key=lambda row: row.started, default=None)
    for state, _ in unfinished_trainings(results, machine):
        if state.command and newest and newest.run_id in state.run_ids and newest.outcome == "interrupted":
            return Command(command=state.command, why="continues the training, which has no model yet")
    return None
