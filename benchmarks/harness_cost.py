"""Measure the cost of the harness: `matrix run-cell` over the bare command. Goal: at most 1.05 on a 30-second workload.

The figure is the wall time of `run-cell` minus that of its verification, over that of the same `vpoc train` command
started by hand. Both are run in pairs, so that a machine whose speed drifts affects them alike. The time of the
verification is reported separately, from the times of its files. On a busy machine the wall time says little about the
harness, so the processor time of the harness's own process, without its children, over that of the bare command is
reported as well.
"""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.base.paths import CHECKOUT
from harness.host.processes.processes import stat_of

PAIRS = 5
# With this number of epochs, the bare command takes about 30 s on one core of the development machine.
EPOCHS = int(os.environ.get("EPOCHS", "70"))
MATRIX = f"""\
schema: 2
stacks: {{cpu: {{accelerator: cpu, torch: "2.13.0"}}}}
presets: {{plain: {{description: nothing set}}}}
workloads:
  half-a-minute: {{description: d, synthetic: {{sessions: 100}}, epochs: {EPOCHS}, time_limit: 600}}
selections: {{default: {{description: d, stacks: all, presets: all, workload: half-a-minute}}}}
"""


# As on a user's machine, the first run compiles the harness's modules once, so bytecode is not disabled.
AS_A_USER = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds of a command: its wall time, and the processor time of its own process without children."""

    wall: float
    own: float


def cost_of(command: list[str], **options: Any) -> Cost:
    """Run a command, which must succeed, and return its cost."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    # WNOWAIT leaves the process a zombie, because its times cannot be read any more once its status is collected.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    wall, fields = time.perf_counter() - began, stat_of(process.pid)
    if code := process.wait():
        raise subprocess.CalledProcessError(code, command)
    return Cost(wall, (int(fields[11]) + int(fields[12])) / TICKS)


def bare(intent: dict[str, Any], folder: Path) -> Cost:
    """Run the command of a run by hand, with the same environment except for the folders, and return its cost."""
    run, here = intent["run_id"], str(folder)
    (command,) = intent["commands"].values()
    (variables,) = intent["variables"].values()
    old = str(Path(variables["HOME"]).parent)
    assert run in old
    environment = {name: value.replace(old, here) for name, value in variables.items()} | {"TMPDIR": here}
    return cost_of([word.replace(old, here) for word in command], env=environment, cwd=here)


def verification(folder: Path) -> float:
    """Return the seconds from when the training wrote its result until its verification was kept."""
    kept = folder / "kept"
    return (kept / "verification.json").stat().st_mtime - (kept / "result.json").stat().st_mtime


def main() -> None:
    """Measure, and print the figures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as place:
        matrix, results = Path(place) / "matrix.yaml", Path(place) / "results"
        matrix.write_text(MATRIX, encoding="utf-8")
        program = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "--matrix", str(matrix), "--results", str(results)]
        command = [*program, "run-cell", "cpu-plain", "--executor", "process"]
        # The first run makes environment and data, so that no timed run does.
        subprocess.run([*command, "--run-id", "first"], check=True, cwd=CHECKOUT, env=AS_A_USER)
        ratios, bares, checks, own = [], [], [], []
        for number in range(PAIRS):
            run_id = f"pair{number}"
            whole = cost_of([*command, "--run-id", run_id], cwd=CHECKOUT, env=AS_A_USER)
            intent = json.loads((results / "runs" / run_id / "intent.json").read_text(encoding="utf-8"))
            with tempfile.TemporaryDirectory() as folder:
                alone = bare(intent, Path(folder))
            checking = verification(results / "runs" / run_id)
            checks.append(checking)
            ratios.append((whole.wall - checking) / alone.wall)
            bares.append(alone.wall)
            own.append(1 + whole.own / alone.own)
            told = f"run-cell {whole.wall:.1f} s, of it verification {checking:.1f} s; bare {alone.wall:.1f} s"
            processor = f"processor {whole.own:.2f} s beside {alone.own:.1f} s: {own[-1]:.3f}"
            load = f"load {os.getloadavg()[0]:.1f}"
            print(f"  pair {number + 1}: {told}: {ratios[-1]:.3f}; {processor}; {load}", flush=True)
        print(f"bare command: {shlex.join(next(iter(intent['commands'].values())))[:100]} ...")
        print(f"verification: median {median(checks):.1f} s")
        print(f"harness cost over {median(bares):.0f} s: median {median(ratios):.3f} of {PAIRS}, goal 1.05")
        print(f"by processor time: median {median(own):.3f}")


if __name__ == "__main__":
    main()
