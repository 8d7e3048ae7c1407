import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from harness.base.files.storage import write_durably
from harness.campaign.answered import Command, LastAnswer
from harness.campaign.under_way import noted_under_way
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.host.facts import HostFacts
from harness.host.fingerprint import machine_of
from harness.host.processes.processes import ProcessId
from harness.matrix.cells import Matrix
from harness.report.continuation import continuation
from harness.report.invocation import AS_MADE
from harness.report.write import built_report
from harness.training.state import new_state, open_state_file

RUN, TRAIN = "matrix run cpu-plain --repeats 3", "matrix train --data merged.csv --output TRAINING"
CONTINUES = LastAnswer(next_command=Command(command="matrix run --budget 8h", why="continues this campaign"))


def write_note_of_killed_command(
    results: Results, machine: str, command: str = RUN, training: str | None = None
) -> None:
    """Write what a killed command leaves: the note of a process that no longer exists."""
    with noted_under_way(results, machine, command, training) as note:
        content = json.loads(note.file.read_text(encoding="utf-8"))
    content["process"]["boot"] = "an earlier one"
    note.file.write_text(json.dumps(content), encoding="utf-8")


def following(results: Results, rows: list[Row], answer: LastAnswer = CONTINUES) -> str | None:
    command = continuation(results, "mine", AS_MADE, rows, answer)
    return command.command if command else None


def test_a_command_at_work_is_watched_before_one_that_was_killed_is_continued(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert following(results, [], LastAnswer()) is None
    assert following(results, []) == "matrix run --budget 8h"
    write_note_of_killed_command(results, "mine")
    assert following(results, []) == RUN
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with other, noted_under_way(results, "mine", "matrix train", "mine") as note:
        # The command at work is this process, which writes the report, so there is nothing else to watch.
        assert following(results, []) == RUN
        content = json.loads(note.file.read_text(encoding="utf-8"))
        content["process"] = asdict(ProcessId.of(other.pid))
        note.file.with_name("mine.another.under-way").write_text(json.dumps(content), encoding="utf-8")
        assert following(results, []) == ".venv/bin/matrix watch"


def test_a_training_is_continued_while_nothing_ran_since_it_was_interrupted(
    tmp_path: Path, host: HostFacts, make_record: Callable[..., Record]
) -> None:
    results, output = Results(tmp_path / "results"), tmp_path / "TRAINING"
    output.mkdir()
    state = new_state("key", "cpu-plain", None)
    attempt = Row.of(make_record(state.run_id(1), "interrupted"))._replace(machine="mine")
    other = attempt._replace(run_id="r2", started=attempt.started + 1)
    update = {"begins": ("first",), "machine": "mine", "output": str(output), "command": TRAIN}
    state = state.model_copy(update={**update, "began": attempt.started - 1})
    with open_state_file(results, host, output, "merged") as file:
        file.write(state)
    # Interrupted before its first run, as while an environment was made.
    assert following(results, [other._replace(started=state.began - 1)]) == TRAIN
    assert following(results, [attempt, other._replace(machine="another")], LastAnswer()) == TRAIN
    assert following(results, [attempt, other], LastAnswer()) is None
    assert following(results, [attempt._replace(outcome="failed")], LastAnswer()) is None
    # Trained, but interrupted before the model was put in its place.
    assert following(results, [attempt._replace(outcome="completed")], LastAnswer()) == TRAIN
    with open_state_file(results, host, output, "merged") as file:
        file.write(state.model_copy(update={"begins": ("first", "same-again")}))
    # Interrupted before the second attempt's run began.
    assert following(results, [attempt._replace(outcome="failed")], LastAnswer()) == TRAIN
    # A killed training is continued until a campaign has begun since.
    write_note_of_killed_command(results, "mine", TRAIN, file.file.stem)
    assert following(results, [attempt, other], LastAnswer()) == TRAIN
    with noted_under_way(results, "mine", RUN):
        pass
    assert following(results, [attempt, other], LastAnswer()) is None
    assert following(results, [attempt], LastAnswer()) == TRAIN


def test_the_report_names_what_continues_a_campaign_that_was_killed(
    tmp_path: Path, matrix: Matrix, make_record: Callable[..., Record]
) -> None:
    results, record = Results(tmp_path), make_record()
    folder = results.begin(record.intent)
    write_durably(folder / "record.json", record.model_dump_json(by_alias=True).encode())
    write_note_of_killed_command(results, machine_of(Path("/")))
    assert built_report(results, matrix).report.answer.next.command == RUN
    # At the end of a campaign, the campaign itself says how it is continued.
    assert built_report(results, matrix, answer=CONTINUES).report.answer.next.command == "matrix run --budget 8h"
