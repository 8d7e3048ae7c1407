"""The cost of the harness: `matrix run-cell` over the bare command it runs. Goal: at most 1.05 on a 30-second workload.

The wall time of `run-cell`, less that of its verification, over that of the same `vpoc train` command started by hand,
in pairs, so that a machine whose speed drifts does both alike. What verification takes is told apart: from the last
line of the training to what was found, as their files say.
"""

import json
import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness.base.paths import CHECKOUT

PAIRS = 5
# Chosen so that the bare command takes about 30 s on one core of the development machine.
EPOCHS = int(os.environ.get("EPOCHS", "40"))
MATRIX = f"""\
schema: 2
stacks: {{cpu: {{accelerator: cpu, torch: "2.13.0"}}}}
presets: {{plain: {{description: nothing set}}}}
workloads:
  half-a-minute: {{description: d, synthetic: {{sessions: 100}}, epochs: {EPOCHS}, time_limit: 600}}
selections: {{default: {{description: d, stacks: all, presets: all, workload: half-a-minute}}}}
"""


def seconds(command: list[str], **options: Any) -> float:
    """Wall time of a command."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    return time.perf_counter() - began


def bare(intent: dict[str, Any], folder: Path) -> float:
    """The command of a run, started by hand with the same environment but for the folders."""
    run, here = intent["run_id"], str(folder)
    (command,) = intent["commands"].values()
    (variables,) = intent["variables"].values()
    old = str(Path(variables["HOME"]).parent)
    assert run in old
    environment = {name: value.replace(old, here) for name, value in variables.items()} | {"TMPDIR": here}
    return seconds([word.replace(old, here) for word in command], env=environment, cwd=here)


def verification(folder: Path) -> float:
    """Seconds from when the training wrote its result until its verification was kept."""
    kept = folder / "kept"
    return (kept / "verification.json").stat().st_mtime - (kept / "result.json").stat().st_mtime


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as place:
        matrix, results = Path(place) / "matrix.yaml", Path(place) / "results"
        matrix.write_text(MATRIX, encoding="utf-8")
        program = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "--matrix", str(matrix), "--results", str(results)]
        # The first run makes environment and data, so that none of the timed ones does.
        subprocess.run([*program, "run-cell", "cpu-plain", "--run-id", "first"], check=True, cwd=CHECKOUT)
        ratios, bares, checks = [], [], []
        for number in range(PAIRS):
            run_id = f"pair{number}"
            whole = seconds([*program, "run-cell", "cpu-plain", "--run-id", run_id], cwd=CHECKOUT)
            intent = json.loads((results / "runs" / run_id / "intent.json").read_text(encoding="utf-8"))
            with tempfile.TemporaryDirectory() as folder:
                alone = bare(intent, Path(folder))
            checking = verification(results / "runs" / run_id)
            checks.append(checking)
            ratios.append((whole - checking) / alone)
            bares.append(alone)
            told = f"run-cell {whole:.1f} s, of it verification {checking:.1f} s; bare {alone:.1f} s"
            print(f"  pair {number + 1}: {told}: {ratios[-1]:.3f}", flush=True)
        print(f"bare command: {shlex.join(next(iter(intent['commands'].values())))[:100]} ...")
        print(f"verification: median {median(checks):.1f} s")
        print(f"harness cost over {median(bares):.0f} s: median {median(ratios):.3f} of {PAIRS}, goal 1.05")


if __name__ == "__main__":
    main()
