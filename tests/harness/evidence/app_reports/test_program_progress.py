"""Tests of the progress that a user's own program prints or writes."""

import os
import time
from pathlib import Path

import pytest

from harness.base.files.untrusted_tree import UntrustedTree
from harness.evidence.app_reports import program_progress
from harness.evidence.app_reports.program_progress import ProgramProgress, whole_progress
from harness.evidence.app_reports.progress import LONGEST_LINE, MOST_LINES_AT_ONCE
from harness.evidence.files.run_folder import RunFolder
from harness.matrix.programs import Program

PATTERN = r"iter (?P<step>[\d,]+)(/(?P<total>\S+))?: loss (?P<loss>\S+)"


class GrowingLog:
    """A log that grows, and the progress that is read from it."""

    def __init__(self, folder: Path, form: str) -> None:
        self.file = folder / "log"
        self.progress = ProgramProgress(UntrustedTree(folder), "log", form)

    def append(self, text: str) -> list[tuple[str, int]]:
        with self.file.open("a", encoding="utf-8") as log:
            log.write(text)
        return [(line.phase, line.done) for line in self.progress.new()]


def test_any_line_that_is_whole_is_an_advance(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, "stdout")
    assert list(log.progress.new()) == []
    assert log.append("loading\nstill ") == [("first-step", 0), ("step", 1)]
    assert log.append("loading\n\n") == [("step", 2)]
    assert log.append("") == []


@pytest.mark.parametrize("form", ["stdout", PATTERN])
def test_of_very_many_lines_some_are_read_at_a_look(tmp_path: Path, form: str) -> None:
    log = GrowingLog(tmp_path, form)
    looks = [log.append("1\n" * (MOST_LINES_AT_ONCE + 1)), log.append("")]
    assert [len(look) for look in looks] == ([MOST_LINES_AT_ONCE + 1, 1] if form == "stdout" else [0, 0])
    assert not log.progress.behind
    assert log.progress._offset == log.file.stat().st_size


def test_a_progress_bar_goes_back_to_the_beginning_of_its_line(tmp_path: Path) -> None:
    assert GrowingLog(tmp_path, "stdout").append("\r 1%|\r 2%|\r")[1:] == [("step", 1), ("step", 2)]


def test_a_pattern_finds_step_total_and_loss(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, PATTERN)
    assert log.append("loading\niter 1,000/2000: loss 0.5\n") == [("first-step", 999), ("step", 1000)]
    assert (log.progress.step, log.progress.total, log.progress.loss) == (1000, 2000, 0.5)
    assert log.append("iter 1001/inf: loss nan\n") == [("step", 1001)]
    assert log.progress.total is None
    assert log.progress.loss != log.progress.loss


def test_lines_of_json_are_read_and_what_is_none_is_not(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, "lines")
    lines = [
        '{"step": 1, "total": 4, "loss": 0.5}',
        "no JSON",
        "[1]",
        '{"step": true}',
        '{"step": -1}',
        '{"step": 1e300}',
    ]
    assert log.append("\n".join(lines) + "\n") == [("first-step", 0), ("step", 1)]
    assert log.append('{"step": "two"}\n{"step": 2}\n') == [("step", 2)]


def test_a_line_without_an_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, "stdout")
    assert log.append("x" * (LONGEST_LINE + 1)) == []
    assert log.append("x\nnext\n") == [("first-step", 0), ("step", 1)]


@pytest.mark.parametrize("kind", ["link", "pipe", "cut"])
def test_what_the_program_makes_of_the_file_does_no_harm(tmp_path: Path, kind: str) -> None:
    log = GrowingLog(tmp_path, "stdout")
    log.append("one\ntwo\n")
    if kind == "cut":
        os.truncate(log.file, 0)
    else:
        log.file.unlink()
        log.file.symlink_to("/etc/passwd") if kind == "link" else os.mkfifo(log.file)
    assert list(log.progress.new()) == []


def test_a_last_line_that_nothing_ends_is_reported_when_it_has_ended(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, "lines")
    assert log.append('{"step": 1, "total": 2, "loss": 0.5}\n{"step": 2, "total": 2, "loss": NaN}')[1:] == [("step", 1)]
    log.progress.take_in_all()
    log.progress.take_in_all()
    assert (log.progress.step, log.progress.advances) == (2, 2)
    assert log.progress.loss != log.progress.loss


def test_a_line_without_a_loss_leaves_the_one_that_was_reported(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, "lines")
    log.append('{"step": 1, "loss": NaN}\n{"step": 2}\n')
    assert log.progress.step == 2
    assert log.progress.loss is not None
    assert log.progress.loss != log.progress.loss


def test_a_pattern_takes_no_longer_for_one_line_than_for_another(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, r"(?P<step>(\d+)+)$")
    began = time.monotonic()
    assert log.append(f"{'1' * 60}!\n7\n")[-1:] == [("step", 7)]
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_what_a_run_that_has_ended_told_is_looked_for_in_no_more_than_the_beginning_of_its_file(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    work = Path(folder.new_work.path)
    work.mkdir()
    file = work / folder.work.PROGRAM_PROGRESS
    file.write_text('{"step": 3}\n')
    with file.open("ab") as stream:
        stream.truncate(1 << 43)
    program = Program.model_validate({"command": "x", "source": ".", "progress": "lines"})
    began = time.monotonic()
    assert whole_progress(folder, program).step == 3
    assert time.monotonic() - began < 20


def test_what_a_run_that_has_ended_told_is_looked_for_in_all_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_progress, "MOST_LINES_AT_ONCE", 20)
    folder = RunFolder(tmp_path)
    folder.log.write_text("step\n" * 1000)
    program = Program.model_validate({"command": "x", "source": ".", "progress": "stdout"})
    assert whole_progress(folder, program).advances == 1000


def test_of_very_many_lines_the_first_and_the_last_tell_what_a_run_that_has_ended_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_progress, "MOST_LINES_AT_ONCE", 1)
    monkeypatch.setattr(program_progress, "LAST_BYTES", 64)
    log = GrowingLog(tmp_path, "lines")
    log.append("".join(f'{{"step": {step}}}\n' for step in range(1, 1001)))
    log.progress.take_in_all()
    assert log.progress.step == 1000
    assert log.progress.advances < 50


@pytest.mark.parametrize(("at", "loss", "unread"), [(300, "nan", False), (200, "None", True)])
def test_of_long_lines_as_many_of_the_last_are_looked_at_as_of_the_first(
    at: int, loss: str, unread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_progress, "MOST_LINES_AT_ONCE", 5)
    log, losses = GrowingLog(tmp_path, "lines"), {1: ', "loss": 0.5', at: ', "loss": NaN'}
    log.file.write_text("".join(f'{{"step": {n}{losses.get(n, "")}, "said": "{"x" * 4000}"}}\n' for n in range(1, 401)))
    log.progress.take_in_all()
    assert log.progress.step == 400
    assert (str(log.progress.loss), log.progress.loss_unread) == (loss, unread)
    assert log.progress.advances <= 320
