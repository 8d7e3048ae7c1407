"""Tests of a shortened evening of `make matrix-test`: real processes on a simulated host with two GPUs."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.simulated import dual_7900xt

BAD, GOOD = "rocm6.3-torch2.9.1", "rocm7.0-torch2.10.0"
MATRIX = """\
schema: 2
stacks:
  rocm6.3-torch2.9.1: {accelerator: rocm, rocm: "6.3", torch: "2.9.1"}
  rocm7.0-torch2.10.0: {accelerator: rocm, rocm: "7.0", torch: "2.10.0"}
  cpu: {accelerator: cpu, torch: "2.13.0"}
presets:
  plain: {description: nothing set}
  no-p2p: {description: no copies between GPUs, variables: {NCCL_P2P_DISABLE: "1"}}
workloads:
  quick: {description: a moment, synthetic: {sessions: 26}, epochs: 1, time_limit: 60}
  standard: {description: a moment more, synthetic: {sessions: 26}, epochs: 2, time_limit: 60}
selections:
  default: {description: all, stacks: all, presets: [plain], workload: quick}
stages:
  smoke: {description: does it train, workload: quick, enters: selection, minutes: 0.1}
  one-gpu: {description: on each alone, workload: standard, devices: each, minutes: 0.1}
  two-gpus:
    description: on both
    workload: standard
    devices: all
    strategy: ddp
    minutes: 0.1
    otherwise: [{preset: no-p2p}]
  endurance: {description: until it is good, workload: standard, enters: best, until: good, minutes: 0.1}
verdicts:
  candidate: 0.1
  good: 0.2
  known_good: 0.5
  mtbf_hours: {candidate: 0, good: 0, known_good: 0}
"""


class Evening:
    """A simulated host with two GPUs and no screen, its world file, and `matrix` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder, folder / "results"
        host = dual_7900xt(folder / "host")
        host.connect(host.gpus[0], "DP-1", "disconnected")
        (folder / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
        (folder / "bars.csv").write_text(STAND_IN_BARS, encoding="utf-8")
        (folder / "made").write_text(f"{BAD} {GOOD} cpu", encoding="utf-8")
        self.plant()

    def plant(self, step_seconds: float = 0.01) -> None:
        """Write the world file: which stacks fail on both GPUs, and how long a step of `standard` takes."""
        versions = {BAD: ("2.9.1+rocm6.3", "6.3.42131"), GOOD: ("2.10.0+rocm7.0", "7.0.51831")}
        torch = {name: {"version": version, "hip": hip} for name, (version, hip) in versions.items()}
        world = {"fails_on_two": [BAD], "step_seconds": step_seconds, "torch": torch}
        (self.folder / "world.json").write_text(json.dumps(world), encoding="utf-8")

    def words(self, *words: str) -> list[str]:
        """Return the command line of `matrix`."""
        places = ("--matrix", "matrix.yaml", "--results", str(self.results), "--root", str(self.folder / "host"))
        program = str(Path(__file__).with_name("planted_main.py"))
        return [sys.executable, program, str(self.folder), *places, *words]

    def matrix(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `matrix` to its end."""
        return subprocess.run(
            self.words(*words), cwd=self.folder, capture_output=True, text=True, check=False, timeout=600
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start `matrix`."""
        return subprocess.Popen(
            self.words(*words), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def rows(self) -> list[Any]:
        """Return the rows of the runs."""
        return Index(Results(self.results)).rows()


@pytest.fixture
def evening(tmp_path: Path) -> Evening:
    return Evening(tmp_path)


RUN = ("run", "--yes", "--data", "bars.csv", "--budget", "20m")


@pytest.mark.long
def test_an_evening_names_the_planted_cell(evening: Evening) -> None:
    done = evening.matrix(*RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{GOOD}-plain on 2 GPUs (ddp) is good: " in f"\n{done.stdout}", done.stdout + done.stderr
    rows = evening.rows()
    on_two = {(row.stack, row.preset): row.outcome for row in rows if json.loads(row.gpus) == [0, 1]}
    assert on_two == {(BAD, "plain"): "failed", (BAD, "no-p2p"): "failed", (GOOD, "plain"): "completed"}
    planned = evening.matrix("plan", *RUN[2:]).stdout
    assert f"  earlier runs: {len(rows)} that count here; " in planned
    assert "  time: from nothing, the first answer" in planned


def both_train(evening: Evening) -> dict[str, Any]:
    """Wait for the two runs that train side by side, and return their intents by run id."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = {}
        for folder in evening.results.glob("runs/*one-gpu*"):
            if (folder / "intent.json").exists() and list(folder.glob("work/progress-0.jsonl")):
                found[folder.name] = json.loads((folder / "intent.json").read_bytes())
        if len(found) > 1:
            return found
        time.sleep(0.05)
    raise AssertionError("they never train side by side")


def processes_of(evening: Evening) -> list[int]:
    """Return the processes of the harness and of its runs in an evening."""
    own = str(evening.folder)
    found = []
    for process in psutil.process_iter():
        try:
            if any(own in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
@pytest.mark.parametrize("asked", [("--selection", "default"), ("--until", "known-good", "--budget", "20m")])
def test_a_plan_and_a_search_make_runs_side_by_side(evening: Evening, asked: tuple[str, ...]) -> None:
    done = evening.matrix("run", "--yes", "--data", "bars.csv", *asked)
    assert "runs of one GPU each are made side by side" in done.stderr
    rows = evening.rows()
    pairs = {row.run_id: json.loads(row.beside) for row in rows if json.loads(row.beside)}
    assert pairs
    assert all(pairs[other] == [run_id] for run_id, (other,) in pairs.items())
    ran = {row.run_id: row for row in rows}
    assert all(ran[other].cell == ran[one].cell and ran[other].gpus != ran[one].gpus for one, (other,) in pairs.items())
    assert {row.outcome for row in rows} == {"completed"}


@pytest.mark.slow
def test_ctrl_c_ends_runs_side_by_side(evening: Evening, wait: Callable[..., None]) -> None:
    """Two runs of one cell train, one on each GPU: both are recorded and name each other, and no process is left."""
    evening.plant(step_seconds=60.0)
    begun = evening.begin(*RUN)
    intents = both_train(evening)
    begun.send_signal(signal.SIGINT)
    said, _ = begun.communicate(timeout=240)
    assert begun.returncode == 130, said
    assert said.count("ending what is running, one moment") == 1
    assert "Traceback" not in said
    assert {name: tuple(intent["beside"]) for name, intent in intents.items()} == {
        name: tuple(intents.keys() - {name}) for name in intents
    }
    assert sorted(intent["gpus"] for intent in intents.values()) == [[0], [1]]
    records = [Results(evening.results).record(name) for name in intents]
    assert {(record.outcome, record.interrupted_by) for record in records if record} == {("interrupted", "ctrl-c")}
    wait(lambda: not processes_of(evening))
