"""The answer of the last campaign of a machine, remembered in its results folder."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.base.files.json_bounds import load_json
from harness.base.files.json_files import File
from harness.base.files.storage import AnotherUsersError, read_regular, write_json
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.recommend import NamedCell


class Command(File):
    """A shell command that the user can type, and why."""

    command: str
    why: str


@dataclass(frozen=True)
class LastAnswer:
    """The answer of the last campaign.

    Attributes:
        named: the cell that the conclusion names.
        sentence: the conclusion, in one sentence.
        next_command: the command that continues the campaign.
        of_program: the conclusion is about a program of the user's own; `named` is then the cell of an earlier answer.
    """

    named: NamedCell | None = None
    sentence: str | None = None
    next_command: Command | None = None
    of_program: bool = False


NO_ANSWER = LastAnswer()


def remember_answer(results: Results, machine: str, answer: LastAnswer) -> None:
    """Write the answer of a campaign on this machine, with the id of the newest run at this time."""
    following = answer.next_command and answer.next_command.model_dump()
    told = {**asdict(answer), "next_command": following, "newest_run": _newest_run(results)}
    told["changed_bytes"] = _changed_bytes(results)
    write_json(_file(results, machine), {"schema": 2, **told})


def last_answer(results: Results, machine: str, rows: Sequence[Row] | None = None) -> LastAnswer:
    """Return the last answer of a machine; an empty one if no campaign has ended.

    `rows` are all rows of the index, if the caller has read them already.

    If a run was made, or struck out or restored, since, the sentence and the command are out of date and left out. They
    are also left out if another user wrote the file, because anybody who shares the folder could have any command
    typed.
    """
    file, mine = _file(results, machine), True
    try:
        try:
            content = read_regular(file, mine=True)
        except AnotherUsersError:
            content, mine = read_regular(file), False
        values = load_json(content)
        named = NamedCell(str(values["named"]["cell"]), str(values["named"]["strategy"])) if values["named"] else None
        # Earlier harnesses did not note the changes.
        changed = values.get("changed_bytes", 0) != _changed_bytes(results)
        if not mine or changed or values.get("newest_run") != _newest_run(results, rows) or "sentence" not in values:
            return LastAnswer(named)
        sentence, following = values["sentence"], values["next_command"]
        next_command = Command.model_validate(following) if following else None
        said = None if sentence is None else str(sentence)
        return LastAnswer(named, said, next_command, bool(values.get("of_program")))
    except (OSError, ValueError, KeyError, TypeError):
        return NO_ANSWER


def _changed_bytes(results: Results) -> int:
    """Return the size of the file of changed runs, which grows with each run that is struck out or restored."""
    try:
        return results.changed.stat().st_size
    except FileNotFoundError:
        return 0


def _newest_run(results: Results, rows: Sequence[Row] | None = None) -> str | None:
    rows = Index(results).rows() if rows is None else rows
    return max(rows, key=lambda row: row.started).run_id if rows else None


def _file(results: Results, machine: str) -> Path:
    return results.folder / "campaigns" / f"{machine}.answer"
