"""Two real processes as the ranks of a run, watched from outside."""

import re
import sys
from pathlib import Path

from harness.contracts import Progress
from harness.executors.process import ProcessExecutor
from harness.processes import processes_of_run
from harness.watch import Watch
from harness.watchdog import LIMITS

RANKS = """
import json, os, sys, time

sleeps_after, ends_after = int(sys.argv[1]), int(sys.argv[2])
rank = 0 if os.fork() else 1
memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
with open(f"progress-{rank}.jsonl", "w") as stream:
    for step in range(1, ends_after + 1):
        told = {"schema": 1, "wall": 0, "monotonic": time.monotonic(), "rank": rank, "pid": os.getpid(),
                "phase": "first-step" if step == 1 else "step", "done": step, "total": None, "max_step_s": None,
                "loss": None, "gradient_norm": None, "memory": memory}
        stream.write(json.dumps(told) + chr(10))
        stream.flush()
        time.sleep(60 if rank == 1 and step == sleeps_after else 0.05)
if rank == 0:
    os.wait()
"""
LIMIT = 2.0


def watch(folder: Path, sleeps_after: int, ends_after: int) -> tuple[Watch, list[Progress]]:
    folder.mkdir()
    seen: list[Progress] = []
    made = Watch(folder, ProcessExecutor(folder.parent), seen.append, None)
    command = (sys.executable, "-c", RANKS, str(sleeps_after), str(ends_after))
    variables = {"PATH": "/usr/bin:/bin"}
    made.execute(command, variables, "log.txt", 30, {**LIMITS, "step": LIMIT, "first-step": LIMIT})
    return made, seen


def test_a_rank_that_sleeps_is_found_and_named_within_its_limit_while_the_others_go_on(tmp_path: Path) -> None:
    made, _ = watch(tmp_path / "run", sleeps_after=3, ends_after=400)
    assert made.stopped_by == "watchdog"
    assert re.match(r"rank 1 made no progress for \d s in phase step at 3", made.stop_detail)
    assert processes_of_run(tmp_path / "run") == []


def test_the_lines_of_every_rank_are_seen_to_the_last_and_their_memory_is_kept(tmp_path: Path) -> None:
    made, seen = watch(tmp_path / "run", sleeps_after=0, ends_after=5)
    assert made.stopped_by is None, made.stop_detail
    assert sorted((line.rank, line.done) for line in seen) == [(rank, step) for rank in (0, 1) for step in range(1, 6)]
    assert {sample.rank for sample in made.memory.samples} == {0, 1}
