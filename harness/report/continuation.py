"""The command that continues unfinished work on a machine; it comes first wherever a next command is named."""

from collections.abc import Sequence

from harness.campaign.answered import Command, LastAnswer, last_answer
from harness.campaign.under_way import left_under_way, under_way
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.host.processes.processes import ProcessId
from harness.report.invocation import Invocation
from harness.training.state import TrainingState, unfinished_trainings


def continuation(
    results: Results,
    machine: str,
    invocation: Invocation,
    rows: Sequence[Row] | None = None,
    answer: LastAnswer | None = None,
) -> Command | None:
    """Return the command that shows a running campaign or training, else one that continues unfinished work; else None.

    `rows` are those of the index and `answer` that of the last campaign, if the caller has read them already. A
    training is continued only if nothing ran on the machine since it was interrupted.
    """
    if any(one.process != ProcessId.mine() for one in under_way(results)):
        return Command(command=invocation.command("watch"), why="shows what runs now")
    for left in left_under_way(results, machine):
        return Command(command=left.command, why=f"continues the {left.what} that was under way")
    rows = Index(results).rows() if rows is None else rows
    newest = max((row for row in rows if row.machine == machine), key=lambda row: row.started, default=None)
    for state, _ in unfinished_trainings(results, machine):
        if state.command and _continues(state, newest):
            return Command(command=state.command, why="continues the training, which is not finished")
    return (answer or last_answer(results, machine, rows)).next_command


def _continues(state: TrainingState, newest: Row | None) -> bool:
    """Return whether nothing ran since a training was interrupted. `newest`: the newest run of the machine."""
    if newest is None or newest.started < state.began:
        return True
    of_it = newest.run_id in state.run_ids
    # Its last attempt may have been interrupted before its run began, or before its model was put in its place.
    return of_it and (newest.outcome in ("interrupted", "completed") or newest.run_id != state.run_ids[-1])
