"""Tests of `matrix run` as a user runs it: interrupted, killed and continued."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.files.hashes import json_hash
from harness.evidence.index_file import index_file
from harness.rehearsal.stand_in_app import SLOW
from tests.system.conftest import PROGRAM, Command, in_this_process

Wait = Callable[..., None]
Left = Callable[[Path], list[psutil.Process]]


def outcomes(results: Path) -> dict[str, str]:
    return {
        folder.name: json.loads((folder / "record.json").read_text())["outcome"]
        for folder in sorted((results / "runs").iterdir())
        if (folder / "record.json").exists()
    }


def run(command: list[str], expected: int = 0) -> subprocess.CompletedProcess[str]:
    done = in_this_process(command)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def training(results: Path) -> bool:
    files = (results / "runs").glob("*/work/progress-0.jsonl")
    return any(
        '"phase":"step"' in f.read_text().replace(" ", "") and not (f.parent / "record.json").exists() for f in files
    )


def status(command: Command, results: Path) -> Any:
    return json.loads(run(command(results, "status", "--json")).stdout)["verdicts"]


def test_a_campaign_leaves_records_index_and_report(tmp_path: Path, quick_command: Command) -> None:
    done = run(quick_command(tmp_path, "run"))
    assert "no AMD GPU" in done.stderr
    assert "Plan: 3 cells, 3 runs" in done.stderr
    said = [re.sub(r"^\S+Z ", "", line) for line in done.stderr.splitlines()]
    assert [line.split(":")[0] for line in said if line.startswith("[")] == [
        "[1/3] cpu-plain",
        "[2/3] cpu-one",
        "[3/3] cpu-two-phases",
    ]
    assert list(outcomes(tmp_path).values()) == ["completed"] * 3
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "report.md").is_file()
    before = status(quick_command, tmp_path)
    assert {s["cell"]: s["runs"] for s in before} == {"cpu-plain": 1, "cpu-one": 1, "cpu-two-phases": 1}
    index_file(tmp_path).unlink()
    assert "3 records" in run(quick_command(tmp_path, "index")).stdout
    assert status(quick_command, tmp_path) == before


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_the_next_run_goes_on(
    tmp_path: Path, quick_command: Command, wait: Wait, left_running: Left
) -> None:
    slow = quick_command.slow(tmp_path)
    command = slow(tmp_path, "run")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait(lambda: len(outcomes_so_far(tmp_path)) == 1 and len(list((tmp_path / "runs").iterdir())) == 2)
    wait(lambda: left_running(tmp_path))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, out + err
    assert "Interrupted: 1 of 3 runs done" in err
    assert left_running(tmp_path) == []
    assert sorted(outcomes(tmp_path).values()) == ["completed", "interrupted"]
    assert (tmp_path / "report.html").is_file()

    (tmp_path / SLOW).unlink(missing_ok=True)
    done = run(command)
    assert "continuing campaign" in done.stderr
    assert "cpu-plain" not in done.stderr.split("continuing")[1].split("cell ")[0]
    assert sorted(outcomes(tmp_path).values()) == ["completed"] * 3 + ["interrupted"]


def outcomes_so_far(results: Path) -> dict[str, str]:
    return outcomes(results) if (results / "runs").is_dir() else {}


@pytest.mark.slow
def test_another_request_to_end_is_the_same(
    tmp_path: Path, quick_command: Command, wait: Wait, left_running: Left
) -> None:
    command = quick_command(tmp_path, "run-cell", "cpu-plain", "--workload", "endless", "--run-id", "mine")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait(lambda: training(tmp_path))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert outcomes(tmp_path) == {"mine": "interrupted"}
    assert left_running(tmp_path) == []
    record = json.loads((tmp_path / "runs" / "mine" / "record.json").read_text())
    assert "SIGTERM" in record["detail"]


@pytest.mark.slow
def test_a_campaign_goes_on_when_its_terminal_is_closed(tmp_path: Path, quick_command: Command, wait: Wait) -> None:
    master, slave = os.openpty()
    begin = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", begin, *quick_command(tmp_path, "run", "cpu-plain")]
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    said = bytearray()

    def read_until_it_trains() -> bool:
        # Read its output, because otherwise the terminal's buffer would fill up and the program would wait.
        while select.select([master], [], [], 0)[0]:
            said.extend(os.read(master, 1 << 16))
        return training(tmp_path) if (tmp_path / "runs").is_dir() else False

    wait(read_until_it_trains)
    os.close(master)
    assert process.wait(300) == 0
    assert b"continues if this terminal is closed" in said
    (record,) = [json.loads(file.read_text()) for file in tmp_path.glob("runs/*/record.json")]
    assert (record["outcome"], record["interrupted_by"]) == ("completed", None)
    (log,) = tmp_path.glob("campaigns/*.log")
    first, *others = log.read_text().splitlines()
    assert re.fullmatch(r"the terminal was closed; the campaign continues; `kill -INT \d+` ends it", first)
    assert any("completed in" in line for line in others)
    assert any(line.startswith("Next: ") for line in others)
    assert "\x1b[" not in log.read_text()
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_a_killed_harness_loses_nothing(tmp_path: Path, quick_command: Command, wait: Wait, left_running: Left) -> None:
    command = quick_command(tmp_path, "run", "--selection", "endless")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(lambda: training(tmp_path))
    process.kill()
    process.wait()
    assert left_running(tmp_path)
    assert outcomes(tmp_path) == {}

    run(quick_command(tmp_path, "run", "cpu-one"))
    assert left_running(tmp_path) == []
    assert sorted(outcomes(tmp_path).values()) == ["completed", "interrupted"]


@pytest.mark.slow
def test_a_run_that_fails_is_reported_by_the_exit_status(tmp_path: Path, quick_command: Command) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(quick_command.matrix_file.read_text().replace("time_limit: 600", "time_limit: 1"))
    run(quick_command(tmp_path / "r", "run", "cpu-plain", "--workload", "endless", matrix=file), expected=1)
    assert list(outcomes(tmp_path / "r").values()) == ["failed"]


@pytest.mark.slow
def test_data_that_is_not_plausible_is_answered_with_what_the_matrix_file_can_say(
    tmp_path: Path, matrix_command: Callable[..., list[str]]
) -> None:
    data = tmp_path / "implausible.csv"
    made = matrix_command(tmp_path / "r", "exec", "cpu-plain", "vpoc", "synth", "--sessions", "26")
    subprocess.run([*made, "--output", str(data)], capture_output=True, check=True)
    header, *rows = data.read_text(encoding="utf-8").splitlines()
    data.write_text("\n".join([header, *(row.rsplit(",", 1)[0] + ",900.0" for row in rows)]) + "\n", encoding="utf-8")
    done = run(matrix_command(tmp_path / "r", "run", "cpu-plain", "--data", str(data)), expected=2)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"matrix: --data: {data}, line 2: ")
    assert last.endswith("or put `accepted: [vix_range]` under `tiny:` in the matrix file")
    assert not (tmp_path / "r" / "runs").exists()


@pytest.mark.slow
def test_a_changed_preset_does_not_go_on_with_an_interrupted_campaign(
    tmp_path: Path, quick_command: Command, wait: Wait, left_running: Left
) -> None:
    file, results = tmp_path / "matrix.yaml", tmp_path / "r"
    before = quick_command.matrix_file.read_text()
    file.write_text(before)
    command = quick_command(results, "run", "cpu-plain", "cpu-one", matrix=file)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(lambda: len(outcomes_so_far(results)) == 1 and left_running(results))
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 130
    file.write_text(before.replace('HSA_ENABLE_SDMA: "0"', 'HSA_ENABLE_SDMA: "1"'))
    done = run(command)
    assert "continuing campaign" not in done.stderr
    assert sorted(outcomes(results).values()) == ["completed"] * 3 + ["interrupted"]


@pytest.mark.slow
def test_two_campaigns_at_once_do_not_make_each_others_runs(tmp_path: Path, quick_command: Command) -> None:
    command = quick_command(tmp_path, "run", "cpu-plain", "cpu-one")
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(err for _, err in told)
    assert list(outcomes(tmp_path).values()) == ["completed"] * 4
    assert len(list((tmp_path / "campaigns").glob("*.json"))) == 2
    assert not any("continuing campaign" in err for _, err in told)
    assert sum("another process is making the same runs" in err for _, err in told) == 1


@pytest.mark.slow
def test_a_killed_run_cell_can_be_typed_again(
    tmp_path: Path, quick_command: Command, wait: Wait, left_running: Left
) -> None:
    command = quick_command(tmp_path, "run-cell", "cpu-plain", "--workload", "endless", "--run-id", "mine")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(lambda: training(tmp_path))
    again = run(command, expected=2)
    assert "is being run by process" in again.stderr
    process.kill()
    process.wait()
    done = run(command, expected=1)
    assert "mine: interrupted" in done.stdout
    assert left_running(tmp_path) == []
    wrong = run(quick_command(tmp_path, "run-cell", "cpu-one", "--run-id", "mine"), expected=2)
    assert "is a run of cpu-plain" in wrong.stderr


@pytest.mark.long
def test_the_users_interpreter_runs_as_the_stack_host(tmp_path: Path, environment: Any) -> None:
    results = tmp_path / "results"
    words = ["--results", str(results), "run-cell", "host-plain", "--python", str(environment.python), "--json"]
    record = json.loads(run([PROGRAM, *words]).stdout)
    assert record["outcome"] == "completed", record["detail"]
    assert record["intent"]["environment"]["torch"] == "2.13.0+cpu"
    assert record["intent"]["stack"] == "host"


def test_the_environment_hash_is_of_what_decides(environment: Any, small_matrix: Any) -> None:
    hashes = {preset: environment.hash(small_matrix.presets[preset]) for preset in small_matrix.presets}
    assert len(set(hashes.values())) == 3
    assert hashes["plain"] != json_hash({})


@pytest.mark.slow
def test_a_folder_without_permission_is_one_line(tmp_path: Path, quick_command: Command) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    command = quick_command(folder / "results", "run-cell", "cpu-plain")
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root may write everywhere, and setpriv is not there to give that up")
        os.chown(folder, 12345, 12345)
        dropped = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", *command]
    else:
        folder.chmod(0o500)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert done.stderr.count("\n") == 1
