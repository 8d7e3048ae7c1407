"""The command that goes on with what was begun on a machine: the one to type next, wherever one is named."""

from collections.abc import Sequence

from harness.campaign.answered import Command, LastAnswer
from harness.campaign.under_way import left_under_way, under_way
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.host.processes.processes import ProcessId
from harness.report.invocation import Invocation
from harness.training.state import unfinished_trainings


def continuation(
    results: Results, machine: str, rows: Sequence[Row], answer: LastAnswer, invocation: Invocation
) -> Command | None:
    """Return what shows another command at work here, or else continues what did not end; None where all did.

    `rows` are those of the index, `answer` is that of the last campaign. A training is continued where the newest run
    is an attempt of it that was interrupted.
    """
    if any(one.process != ProcessId.mine() for one in under_way(results)):
        return Command(command=invocation.command("watch"), why="shows what runs now")
    for left in left_under_way(results, machine):
        return Command(command=left.command, why=f"continues the {left.what} that was under way")
    if answer.next_command:
        return answer.next_command
    newest = max(rows, key=lambda row: row.started, default=None)
    for state, _ in unfinished_trainings(results, machine):
        if state.command and newest and newest.run_id in state.run_ids and newest.outcome == "interrupted":
            return Command(command=state.command, why="continues the training, which has no model yet")
    return None
