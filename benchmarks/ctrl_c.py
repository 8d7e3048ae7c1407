"""Measure how soon Ctrl-C is answered and obeyed in a campaign whose run trains, as a process and in a container.

Fails if an answer took more than a second or the end more than ten. Writes docs/evidence/ctrl-c.md.
"""

import argparse
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.pages import machine_and_load, today, write_page
from harness.base.interrupts import INTERRUPTED
from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from harness.host.engine import find_engine

FIGURES = CHECKOUT / "docs" / "evidence" / "ctrl-c.md"
MATRIX = """\
schema: 2
stacks:
  cpu: {accelerator: cpu, torch: "2.13.0"}
presets:
  plain: {description: nothing set}
workloads:
  endless:
    description: never ends
    synthetic: {sessions: 26}
    lookback: 20
    epochs: 5000
    loader_workers: 2
    time_limit: 600
selections:
  default: {description: one, stacks: [cpu], presets: [plain], workload: endless}
"""
ANSWER_GOAL, END_GOAL = 1.0, 10.0
LONGEST_SECONDS = 600.0
POLL_SECONDS = 0.02


class Took(NamedTuple):
    """Seconds from Ctrl-C to the line that answers it, and to the end of the command."""

    answer: float
    end: float


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("times", type=int, nargs="?", default=10)
    times = parser.parse_args().times
    executors = ["process", *(["docker"] if find_engine() else [])]
    with tempfile.TemporaryDirectory() as place:
        took = {name: [interrupted(Path(place) / f"{name}-{n}", name) for n in range(times)] for name in executors}
    text = [
        "# Ctrl-C, measured",
        "",
        f"Written by `make bench-ctrl-c` on {today()}: {machine_and_load()}. "
        f"In each campaign, a run trains on the CPU with two loader workers; {times} campaigns for each row. "
        "Seconds are from Ctrl-C to the answer, and to the end of the command with record and report.",
        "",
        "| a run | answered, median | longest | goal | done, median | longest | goal |",
        "|---|---|---|---|---|---|---|",
        *(row(name, found) for name, found in took.items()),
    ]
    write_page(FIGURES, text)
    if any(one.answer > ANSWER_GOAL or one.end > END_GOAL for found in took.values() for one in found):
        raise SystemExit("longer than the goal")


def interrupted(place: Path, executor: str) -> Took:
    """Start a campaign, send Ctrl-C once it trains, and wait for its end."""
    place.mkdir()
    (place / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    words = ("--matrix", str(place / "matrix.yaml"), "--results", str(place / "results"))
    command = [str(CHECKOUT / ".venv" / "bin" / "matrix"), *words, "run", "--executor", executor]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_until_it_trains(place / "results", process)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        answer = None
        for line in process.stderr or ():
            if answer is None and "ending what is running" in line:
                answer = time.monotonic() - began
        status = process.wait()
        end = time.monotonic() - began
    records = [Results(place / "results").record(run_id) for run_id in Results(place / "results").finished()]
    if answer is None or status != INTERRUPTED or [one.outcome for one in records if one] != ["interrupted"]:
        raise SystemExit(f"{executor}: ended with status {status}, and not as it should")
    return Took(answer, end)


def wait_until_it_trains(results: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a training step was made."""
    until = time.monotonic() + LONGEST_SECONDS
    while not any(b'"step"' in file.read_bytes() for file in results.glob("runs/*/work/progress-0.jsonl")):
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit("it never trains")
        time.sleep(POLL_SECONDS)


def row(executor: str, took: Sequence[Took]) -> str:
    """Return one row of the table."""
    what = "in a container" if executor == "docker" else "as a process"
    answers, ends = [one.answer for one in took], [one.end for one in took]
    return (
        f"| {what} | {median(answers):.2f} | {max(answers):.2f} | {ANSWER_GOAL:g} "
        f"| {median(ends):.1f} | {max(ends):.1f} | {END_GOAL:g} |"
    )


if __name__ == "__main__":
    main()
