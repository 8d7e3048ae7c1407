"""Tests of runs of a user's own programs: plain Python scripts that run as processes on this host."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.environments.environment import Environment
from harness.environments.executors.process import ProcessExecutor
from harness.environments.python import programs
from harness.environments.python.programs import take_program
from harness.evidence.app_reports import program_progress
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.host.facts import HostFacts
from harness.host.processes.run_processes import processes_of_run
from harness.matrix.cells import Matrix
from harness.matrix.programs import Program
from harness.matrix.workloads import Workload
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell

STEPS = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)"
TRAIN = """
import json
for step in range(1, 4):
    print(f"step {step}/3 loss {1 / step}")
json.dump({"loss": 1 / 3}, open("metrics.json", "w"))
"""
# A script that runs until it is stopped.
FOR_EVER = "import time\nprint('step 1/9 loss 1')\nwhile True: time.sleep(.05)"

Make = Callable[..., Record]


@pytest.fixture
def make(tmp_path: Path, matrix: Matrix, host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that runs a script once; `values` are further fields of its `Program`."""
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path / "programs")

    def make(text: str, *, time_limit: int = 60, observe: Callable[[], None] = lambda: None, **values: Any) -> Record:
        source = tmp_path / "code"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text(text, encoding="utf-8")
        own = Program.model_validate({"command": "python train.py", "source": str(source), "progress": STEPS, **values})
        taken = take_program(own, "--app")
        asked = {"name": "mine", "description": "mine", "program": taken.model_dump(), "time_limit": time_limit}
        workload = Workload.model_validate(asked)
        assert taken.taken is not None
        data = InputFile(path=str(source), sha256=taken.taken.version)
        # Not resolved, because in a virtual environment this link leads to the interpreter that made the environment.
        python = Path(sys.executable)
        environment = Environment(python, {"lock": "l"}, {"PYTHONPATH": "/nowhere"}, "cpu")
        run = Run("r1", matrix.cells["cpu-plain"], workload, data, environment, host)
        return run_cell(run, Results(tmp_path / "results"), ProcessExecutor(), lambda _: observe())

    return make


def work(tmp_path: Path) -> Path:
    return tmp_path / "results/runs/r1/work/program"


def test_one_that_completes_is_marked_as_not_checked_and_qualifies_for_nothing(make: Make, tmp_path: Path) -> None:
    record = make(TRAIN, produces=[{"file": "metrics.json", "finite": ["loss"]}])
    assert (record.outcome, record.diagnosis) == ("completed", None)
    told = "exit 0, 3 lines of progress, the last of step 3 of 3, loss 0.333333, 1 file checked; numbers not checked"
    assert record.detail == told
    assert (record.ran_on, record.first_step, record.result) == ("cpu x1", True, None)
    row = Row.of(record)
    assert (row.own_program, row.verified, row.qualifies_for_promotion) == (True, False, False)
    assert record.intent.program is not None
    assert Record.model_validate_json(record.model_dump_json(by_alias=True)) == record
    assert (work(tmp_path) / "train.py").is_symlink()


def test_one_whose_file_cannot_be_copied_because_it_took_the_room_has_failed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("harness.evidence.files.kept_copies.copy_out", fail)
    monkeypatch.setattr("harness.host.disk_use.LEAVES_ROOM_BYTES", 1 << 20)
    record = make("open('out.bin', 'wb').write(bytes(2 << 20))", progress="stdout", produces=[{"file": "out.bin"}])
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
    assert "kept/product-1: cannot be written: No space left on device" in record.detail


def test_a_program_sees_its_files_and_places_alone(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the caller")
    bars = tmp_path / "bars.csv"
    bars.write_text("bars", encoding="utf-8")
    text = """
import os, pathlib
place, home = pathlib.Path.cwd(), pathlib.Path(os.environ["HOME"])
assert place.name == "program" and home.parent == place.parent, (place, home)
assert pathlib.Path(os.environ["MATRIX_DATA"], "bars.csv").read_text() == "bars"
assert os.environ["MINE"] == "1" and "SECRET" not in os.environ and "PYTHONPATH" not in os.environ, os.environ
print("step 1/1 loss 0")
"""
    record = make(text, data=[str(bars)], environment={"MINE": "1"})
    assert record.outcome == "completed", record.detail


def test_a_program_without_data_gets_no_folder_of_data(make: Make) -> None:
    record = make("import os\nassert 'MATRIX_DATA' not in os.environ\nprint('step 1/1 loss 0')")
    assert record.outcome == "completed", record.detail


@pytest.mark.parametrize(
    ("text", "diagnosis", "detail", "line"),
    [
        ("raise ValueError('no such column')", "app-error", "exit 1: 'ValueError: no such column'", "ValueError"),
        ("import ctypes; ctypes.string_at(0)", "crash", "SIGSEGV", "Fatal Python error: Segmentation fault"),
    ],
)
def test_a_traceback_is_the_reason_of_a_failure(make: Make, text: str, diagnosis: str, detail: str, line: str) -> None:
    record = make(f"print('step 1/3 loss 1')\n{text}")
    assert (record.outcome, record.diagnosis) == ("failed", diagnosis)
    assert record.detail == f"the train process ended with {detail}"
    assert record.explanation is not None
    assert line in record.explanation.lines[0].text


@pytest.mark.parametrize(
    ("text", "diagnosis"),
    [
        ("open('no-such-file')", "app-error"),
        ("import time; print('reads', flush=True); time.sleep(0.5); print('on', flush=True); 1 / 0", "app-error"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--epcohs'])", "refused"),
    ],
)
def test_what_a_program_prints_as_it_fails_is_no_start(make: Make, text: str, diagnosis: str) -> None:
    failed = make(text, progress="stdout")
    assert (failed.outcome, failed.diagnosis, failed.first_step) == ("failed", diagnosis, False)
    # The survival of runs is computed from this time.
    assert failed.exposure_seconds == 0


@pytest.mark.slow
def test_one_that_is_stopped_hangs(make: Make, tmp_path: Path) -> None:
    def stop() -> None:
        for process in processes_of_run(tmp_path / "results/runs/r1"):
            os.kill(process.pid, signal.SIGSTOP)

    record = make(FOR_EVER, observe=stop, stall_limit=2)
    assert (record.outcome, record.diagnosis) == ("hung", "no-progress")
    assert "made no progress for 2 s in phase step at 1, process" in record.detail
    assert "is stopped" in record.detail
    assert processes_of_run(tmp_path / "results/runs/r1") == []


def test_one_that_catches_term_is_killed_at_its_limit(make: Make, tmp_path: Path) -> None:
    record = make(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FOR_EVER}", time_limit=1)
    assert (record.outcome, record.diagnosis) == ("failed", "time-limit")
    assert processes_of_run(tmp_path / "results/runs/r1") == []


def test_one_that_ends_well_when_it_is_stopped_has_not_completed(make: Make) -> None:
    record = make(
        f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n{FOR_EVER}", time_limit=1
    )
    assert (record.outcome, record.diagnosis) == ("failed", "time-limit")


@pytest.mark.slow
def test_signals_of_the_programs_own_are_left_alone(make: Make, tmp_path: Path) -> None:
    catches = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('asked'))\n"
    record = make(f"{catches}{FOR_EVER}", stall_limit=2, progress=r"epoch (?P<step>\d+)")
    assert record.outcome == "hung"
    # The program advances, but its pattern does not show it.
    assert record.detail.endswith("; no line that it printed matches its pattern of progress")
    assert "asked" not in (tmp_path / "results/runs/r1/log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "values", "diagnosis", "detail"),
    [
        ("", {}, "no-result", "exit 0, but it printed nothing, and `produces:` names no file that shows what it did"),
        (TRAIN, {"produces": [{"file": "model.pt"}]}, "no-result", "exit 0, but model.pt is not there"),
        ("print('step 1/1 loss nan')", {}, "not-finite", "the last loss that it reported, at step 1, is nan"),
        (
            "print('step 1/1 loss 1' + '\\n' * 250_000 + 'step 1/1 loss nan' + '\\n' * 250_000)",
            {},
            "incomplete-result",
            "its last loss is in progress that was skipped",
        ),
        ("input('which GPU? ')", {}, "app-error", "exit 1: 'EOFError: EOF when reading a line'"),
        ("import os; os.abort()", {}, "crash", "the train process ended with SIGABRT"),
        ("import sys; sys.exit(2)", {}, "refused", "ended with exit 2 before its first step"),
        ("import sys; sys.exit(4)", {}, "app-error", "the train process ended with exit 4"),
        (TRAIN, {"command": "pyhton train.py"}, "not-started", "pyhton could not be started"),
        (
            "import os, pathlib, sys\nplace = pathlib.Path(os.path.realpath(__file__)).parent\n"
            "os.chmod(place, 0o755)\n(place / 'out.txt').write_text('x')\nprint('step 1/1 loss 0')",
            {},
            "work-folder",
            "it changed its own source (out.txt), which it may only read",
        ),
        (
            "import os, time\nprint('step 1/9 loss 1', flush=True)\nif os.fork() == 0:\n"
            "    os.setsid()\n    time.sleep(60)",
            {},
            "no-result",
            "exit 0, but it left processes running",
        ),
    ],
)
def test_what_a_program_does_wrong_is_said_in_a_line(
    make: Make, tmp_path: Path, text: str, values: dict[str, Any], diagnosis: str, detail: str
) -> None:
    record = make(text, **values)
    assert (record.outcome, record.diagnosis) == ("failed", diagnosis), record.detail
    assert detail in record.detail
    # What a program that ended well printed last is no reason.
    assert record.diagnosis != "not-finite" or record.detail == detail
    assert processes_of_run(tmp_path / "results/runs/r1") == []


def test_its_source_can_be_edited_while_it_runs(make: Make, tmp_path: Path) -> None:
    edited = threading.Event()

    def edit() -> None:
        if not edited.is_set():
            (tmp_path / "code/train.py").write_text("raise SystemExit(1)", encoding="utf-8")
            edited.set()

    record = make("import time\nprint('step 1/2 loss 1')\ntime.sleep(1)\nprint('step 2/2 loss 1')", observe=edit)
    assert edited.is_set()
    assert record.outcome == "completed", record.detail


def test_a_run_starts_from_the_source_that_a_program_had_changed_before(make: Make, tmp_path: Path) -> None:
    make("import os\nos.chmod(os.path.realpath(__file__), 0o644)\nopen(os.path.realpath(__file__), 'a').write('x = 1')")
    (tmp_path / "results/runs/r1").rename(tmp_path / "before")
    text = (tmp_path / "code/train.py").read_text(encoding="utf-8")
    make(text)
    assert (tmp_path / "before/work/program/train.py").read_text(encoding="utf-8").count("x = 1") == 2


def test_a_last_loss_that_is_not_finite_counts_where_nothing_ends_its_line(make: Make) -> None:
    record = make("print('step 1/2 loss 1')\nprint('step 2/2 loss nan', end='')")
    assert (record.outcome, record.diagnosis) == ("failed", "not-finite")


def test_a_last_loss_that_is_not_finite_counts_behind_more_lines_than_the_watch_takes_in(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_progress, "MOST_LINES_AT_ONCE", 4)
    record = make("print('step 1/1000 loss 1\\n' * 999 + 'step 1000/1000 loss nan')")
    assert (record.outcome, record.diagnosis) == ("failed", "not-finite")
