"""Tests of runs whose app leaves no usable result or tampers with its run folder: each still gets a record."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from harness.base.errors import UserError
from harness.environments.environment import Environment
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.report.of_runs.details import detail_of
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell
from tests.harness.base.hostile import TRICKS

APP = """#!{python}
import os, pathlib, shutil, sys
work = pathlib.Path.cwd()
run, results = work.parent, work.parents[2]
secret = results.parent / "secret"
{code}
"""
Attack = Callable[[str], Record]

SECRET = "the key of the user"
WITH_ITS_FOLDER = {
    "removed": ("[shutil.rmtree(run, ignore_errors=True) for _ in range(9)]", "the work folder is gone"),
    "moved": ("run.rename(results / 'moved')", "the work folder is gone"),
    "replaced by a link": (
        "elsewhere = results / 'elsewhere'; run.rename(elsewhere); run.symlink_to(elsewhere)",
        "",
    ),
    "its own part removed": ("shutil.rmtree(work)", "the work folder is gone"),
    "its own part a link": (
        "shutil.rmtree(work); work.symlink_to(results)",
        "the work folder is a link, not a folder",
    ),
    "its own part a file": ("shutil.rmtree(work); work.touch()", "the work folder is a file, not a folder"),
}
WITH_OUR_FILES = {
    "record a folder": "(run / 'record.json').mkdir(); (run / 'record.json' / 'x').touch()",
    "record a link": "(run / 'record.json').symlink_to(secret)",
    "intent a link": "(run / 'intent.json').unlink(); (run / 'intent.json').symlink_to(secret)",
    "intent of another": "(run / 'intent.json').write_text('{}')",
}


@pytest.fixture
def attack(tmp_path: Path, matrix: Matrix, host: HostFacts) -> Attack:
    """Return a function that runs Python code as the app and returns the run's record.

    It also checks that the run took less than 30 s and left a file outside its folder unchanged.
    """
    (tmp_path / "secret").write_text(SECRET)

    def run(code: str) -> Record:
        python = tmp_path / "python"
        python.write_text(APP.format(python=sys.executable, code=code), encoding="utf-8")
        python.chmod(0o755)
        data, environment = InputFile(path="/bars.csv", sha256="a" * 64), Environment(python, {"lock": "l"}, {}, "cpu")
        asked = Run("r1", matrix.cells["cpu-plain"], matrix.workloads["quick"], data, environment, host)
        results, began = Results(tmp_path / "results"), time.monotonic()
        record = run_cell(asked, results, ProcessExecutor())
        assert time.monotonic() - began < 30
        assert results.record("r1") == record
        assert results.intent("r1") == record.intent
        assert (tmp_path / "secret").read_text() == SECRET
        return record

    return run


def make(trick: str, name: str) -> str:
    tests = Path(__file__).parents[3]
    return (
        f"sys.path.insert(0, {str(tests)!r})\n"
        "from tests.harness.base.hostile import TRICKS\n"
        f"TRICKS[{trick!r}][0](work / {name!r})"
    )


@pytest.mark.parametrize("trick", TRICKS)
def test_in_place_of_the_result(trick: str, attack: Attack) -> None:
    record = attack(make(trick, "result.json"))
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
    assert record.detail.startswith(f"result.json in the work folder {TRICKS[trick][1].partition(',')[0]}")


@pytest.mark.parametrize("trick", ["a link to nothing", "a FIFO", "a folder"])
@pytest.mark.parametrize("name", ["progress-0.jsonl", "position-0.bin", "stacks-0.txt", "output"])
def test_in_place_of_another_file(trick: str, name: str, attack: Attack) -> None:
    record = attack(make(trick, name))
    diagnosis = "no-result" if (name, trick) == ("output", "a folder") else "work-folder"
    assert (record.outcome, record.diagnosis) == ("failed", diagnosis)


@pytest.mark.parametrize(("code", "told"), WITH_ITS_FOLDER.values(), ids=WITH_ITS_FOLDER)
def test_with_the_folder_of_the_run(code: str, told: str, attack: Attack, tmp_path: Path) -> None:
    record = attack(code)
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder" if told else "no-result")
    assert record.detail.startswith(told)
    assert not (tmp_path / "results" / "runs" / "r1").is_symlink()


def test_with_the_folder_of_the_run_before_it_is_noted(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(point: str) -> None:
        if point == "file-written" and not removed:
            removed.append(point)
            shutil.rmtree(tmp_path / "results" / "runs" / "r1")

    removed = list[str]()
    monkeypatch.setattr(
        "harness.environments.executors.process.reached",
        lambda _: monkeypatch.setattr("harness.base.files.storage.reached", remove),
    )
    record = attack("import time; time.sleep(60)")
    assert (record.outcome, record.diagnosis, removed) == ("failed", "work-folder", ["file-written"])
    assert record.detail.startswith("the work folder is gone")


@pytest.mark.parametrize("code", WITH_OUR_FILES.values(), ids=WITH_OUR_FILES)
def test_with_the_files_of_the_harness(code: str, attack: Attack) -> None:
    record = attack(code)
    assert (record.outcome, record.diagnosis) == ("failed", "no-result")


def test_when_it_fails_what_it_left_is_reported_besides(attack: Attack) -> None:
    record = attack("os.mkfifo(work / 'result.json'); os.mkfifo(work / 'other'); sys.exit('no')")
    assert (record.outcome, record.diagnosis) == ("failed", "app-error")
    assert "; result.json in the work folder is a FIFO; other in the work folder is a FIFO" in record.detail


def test_nothing_but_the_one_way_opens_what_is_in_the_work_folder(attack: Attack) -> None:
    """Only the functions named below may open, list, rename or remove something in the work folder by its path."""
    seen: set[tuple[str, str]] = set()

    def listen(event: str, arguments: tuple[object, ...]) -> None:
        if not watching or event.partition(".")[0] not in ("open", "os", "shutil", "glob", "pathlib"):
            return
        for argument in arguments[:2]:
            if isinstance(argument, str | Path) and "/runs/r1/work" in str(argument):
                frame = sys._getframe(1)
                while frame.f_back and "/harness/" not in frame.f_code.co_filename:
                    frame = frame.f_back
                seen.add((event, f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"))

    watching = True
    sys.addaudithook(listen)
    try:
        record = attack(
            "(work / 'result.json').write_text('{}'); (work / 'progress-0.jsonl').write_text('{}'); "
            "(work / 'output').mkdir(); (work / 'output' / 'model.pt').touch()"
        )
    finally:
        watching = False
    assert record.diagnosis == "no-result"
    assert {place for _, place in seen} <= {
        "untrusted_tree.py:_folder",
        "run_folder.py:make_places",
        "set_id.py:remove_set_id",
    }
    assert ("open", "untrusted_tree.py:_folder") in seen


@pytest.mark.parametrize("name", ["model\\0.pt", "\\ud800.pt"])
def test_a_model_with_a_name_that_no_file_has(
    name: str, attack: Attack, result_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**result_values, "model": {**result_values["model"], "file": "NAME"}}
    text = json.dumps(values).replace("NAME", name.replace("\\0", "\\u0000"))
    record = attack(f"(work / 'result.json').write_text({text!r})")
    assert record.outcome == "failed"
    assert record.detail.isprintable()


@pytest.mark.parametrize("place", ["harness.run.carry_out.leftovers", "harness.run.carry_out.keep_result"])
def test_an_error_in_reading_what_it_left_fails_the_run_alone(
    place: str, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(place, fail)
    record = attack("pass")
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
    assert record.detail == "what it left cannot be read: RecursionError: too deep"


LINE = {
    "schema": 2,
    "wall": 0,
    "monotonic": 0,
    "rank": 0,
    "pid": 1,
    "phase": "import",
    "done": 1,
    "total": None,
    "max_step_s": None,
    "loss": None,
    "gradient_norm": None,
    "memory": {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None},
}


@pytest.mark.parametrize(
    "place",
    [
        "harness.evidence.app_reports.progress.parse_lines",
        "harness.evidence.files.work_folder.WorkFolder.progress",
        "harness.evidence.app_reports.accounting.Accounting.saw",
        "harness.evidence.app_reports.accounting.Accounting.close",
        "harness.evidence.app_reports.memory.MemoryHistory.saw",
        "harness.evidence.app_reports.memory.MemoryUse.of",
        "harness.evidence.app_reports.exposure.ExposureWatch.saw",
        "harness.run.watch.watchdog.Watchdog.saw",
        "harness.run.verify.verify",
        "harness.run.verify.keep",
        "harness.run.conclude.decide",
        "harness.run.write_record.survivors_in_words",
    ],
)
def test_whatever_cannot_make_sense_of_it_the_run_has_its_record(
    place: str, attack: Attack, result_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(place, fail)
    record = attack(
        f"(work / 'progress-0.jsonl').write_text({json.dumps(LINE)!r} + chr(10))\n"
        f"(work / 'result.json').write_text({json.dumps(result_values)!r})"
    )
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
    assert record.detail.startswith("what it left cannot be read: OverflowError: int too large to convert to float")


def test_an_integer_of_400_digits_is_no_number(attack: Attack, result_values: dict[str, Any]) -> None:
    huge = json.dumps({**LINE, "monotonic": "HUGE"}).replace('"HUGE"', "9" * 400)
    result_values["throughput"]["samples_per_second"] = "HUGE"
    result = json.dumps(result_values).replace('"HUGE"', "9" * 400)
    record = attack(
        f"(work / 'progress-0.jsonl').write_text({huge!r} + chr(10))\n(work / 'result.json').write_text({result!r})"
    )
    assert (record.outcome, record.diagnosis) == ("failed", "no-result")
    assert "throughput.samples_per_second: a number is too large" in record.detail


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"epoch_losses": [{"epoch": 1, "train": 1, "validation": None}] * 16_000}, "it holds more than 65,536 values"),
        ({"world_size": "1" * 60}, "result.world_size: a number is too large"),
    ],
)
def test_a_result_that_no_record_can_hold_fails_the_run(
    values: dict[str, Any], why: str, attack: Attack, result_values: dict[str, Any]
) -> None:
    """The record could not be read again, so the run counted nowhere, and its campaign ended there."""
    record = attack(f"(work / 'result.json').write_text({json.dumps({**result_values, **values})!r})")
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
    assert record.detail == f"what it left cannot be read: ValidationError: {why}"


def test_progress_of_ranks_that_there_are_not_fails_the_run(attack: Attack) -> None:
    record = attack("for rank in range(4): (work / f'progress-{rank}.jsonl').write_text(chr(10) * 1000)")
    assert (record.outcome, record.diagnosis) == ("failed", "work-folder")
    assert record.detail.startswith("progress-1.jsonl in the work folder is of no rank of 1; ")


def test_what_took_too_much_room_is_removed(attack: Attack, tmp_path: Path) -> None:
    record = attack(
        "(work / 'fill').write_bytes(bytes(1 << 20)); (work / 'output').mkdir(); "
        "(work / 'output' / 'model.pt').write_bytes(b'weights'); (work / 'progress-0.jsonl').touch(); "
        f"os.makedirs(work / '{'d/' * 110}'); import time; time.sleep(20)"
    )
    assert (record.outcome, record.diagnosis) == ("failed", "disk-limit")
    assert re.search(r"; removed from the work folder: d, fill, scratch; [\d.]+ kB are left in it$", record.detail)
    work = tmp_path / "results" / "runs" / "r1" / "work"
    assert sorted(place.name for place in work.iterdir()) == ["output", "progress-0.jsonl"]
    assert (work / "output" / "model.pt").read_bytes() == b"weights"


def test_what_is_written_at_the_very_end_is_too_much_as_well(attack: Attack) -> None:
    record = attack(f"os.makedirs(work / '{'d/' * 110}')")
    assert (record.outcome, record.diagnosis) == ("failed", "disk-limit")


def test_a_disk_that_it_filled_costs_neither_the_record_nor_the_campaign(
    attack: Attack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = tmp_path / "results" / "runs" / "r1" / "work"

    class Used(NamedTuple):
        free: int

    def write(file: Path, content: bytes) -> None:
        if (work / "output" / "fill").exists():
            raise UserError(f"{file}: cannot be written: No space left on device; free space")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def excess(*_: object) -> str:
        return "only 0.00 GB are left" if (work / "output" / "fill").exists() else ""

    monkeypatch.setattr("harness.evidence.files.run_folder.write_durably", write)
    monkeypatch.setattr("harness.host.disk_use.excess", excess)
    monkeypatch.setattr("harness.run.run_cell.shutil.disk_usage", lambda _: Used(0))
    monkeypatch.setattr("harness.host.disk_use.LEAVES_ROOM_BYTES", 0)
    record = attack(
        "(work / 'output').mkdir(); (work / 'output' / 'fill').write_text('x'); (work / 'result.json').touch()"
    )
    assert (record.outcome, record.diagnosis) == ("failed", "disk-limit")
    assert record.detail.endswith("its models and checkpoints are removed, too: the disk is full")


def test_a_disk_that_another_program_filled_costs_no_checkpoints(
    attack: Attack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = tmp_path / "results" / "runs" / "r1" / "work" / "output" / "mlp.pt"
    monkeypatch.setattr("harness.host.disk_use.excess", lambda *_: "only 0 kB are left" if model.exists() else "")
    monkeypatch.setattr("harness.run.run_cell.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    record = attack("(work / 'output').mkdir(); (work / 'output' / 'mlp.pt').write_bytes(bytes(1 << 20))")
    assert (record.outcome, record.diagnosis) == ("failed", "disk-limit")
    assert "checkpoints are removed" not in record.detail
    assert model.stat().st_size == 1 << 20


def test_a_mistake_of_the_user_after_the_start_leaves_a_record_and_is_reported(
    attack: Attack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise UserError("no such engine; start it")

    monkeypatch.setattr("harness.run.verify.keep", fail)
    monkeypatch.setattr("harness.run.carry_out.keep_result", fail)
    with pytest.raises(UserError, match="no such engine; start it"):
        attack("pass")
    record = Results(tmp_path / "results").record("r1")
    assert record is not None
    assert (record.outcome, record.diagnosis) == ("interrupted", None)
    assert record.detail == "the harness could not continue: no such engine; start it"


def test_of_a_run_whose_record_cannot_be_made_no_checkpoint_counts(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr("harness.run.write_record.survivors_in_words", fail)
    assert attack("sys.exit(1)").steps_accounted == ()


def test_a_device_that_nobody_here_knows_is_quoted(
    attack: Attack, host: HostFacts, tmp_path: Path, result_values: dict[str, Any]
) -> None:
    name = "known-good, 24 of 24"
    result_values["devices"] = [{**result_values["devices"][0], "name": one} for one in (name, host.cpu)]
    record = attack(f"(work / 'result.json').write_text({json.dumps(result_values)!r})")
    assert record.ran_on == f"cpu ({host.cpu}, '{name}') x2"
    assert f"rank 0: '{name}'; " in detail_of(record, RunFolder(tmp_path / "results" / "runs" / "r1")).used
