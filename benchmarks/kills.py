"""Count what `kill -9` of the harness causes: lost or corrupt records, orphans, stuck locks, repeated runs, delays.

`matrix run`, with a stand-in for the app and a synthetic GPU, is killed at random moments and at every named point, and
each time started again in the same results folder, so that recoveries are killed too. `--containers N` adds N kills
with the real app in containers. Writes docs/evidence/crash-safety-figures.md and .json.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.kill_tester import GOAL_SECONDS, Figures, Kill, kill_often
from benchmarks.pages import machine, today
from harness.base.files.failpoints import POINTS
from harness.base.paths import CHECKOUT
from harness.host.engine import find_engine

FIGURES = CHECKOUT / "docs" / "evidence" / "crash-safety-figures"
# The number of kills in one results folder; then its campaign is finished, and a new folder begins.
BATCH = 40
ONLY_IN_CONTAINERS = {"container-created"}


def kills(count: int, chance: random.Random) -> Iterator[Kill]:
    """Yield kills, half at random moments and half at the named points, at their first, second or third occurrence."""
    points = [point for point in POINTS if point not in ONLY_IN_CONTAINERS]
    for number in range(count):
        if number % 2:
            yield Kill(seconds=chance.uniform(0.3, 4.0))
        else:
            point = points[number // 2 % len(points)]
            yield Kill(f"{point}@{chance.randint(1, 3)}" if number // 2 >= len(points) else point)


def report(process: Figures, containers: Figures | None, seed: int) -> str:
    """Return the figures as Markdown."""
    lines = [
        "# `kill -9` of the harness, counted",
        "",
        f"Written by `benchmarks/kills.py` on {today()}, seed {seed}: {machine()}. "
        "Processes run a stand-in for the app on a simulated GPU, containers the real app on a CPU. "
        "`kill -9` does not test a power cut, because the kernel still writes its buffers to disk. "
        "A restart is timed until it begins a run; a restart that is killed before that is not timed.",
        "",
        "| | kills | at named points | records | lost, corrupt, run twice, left behind | restart, median | worst |",
        "|---|---|---|---|---|---|---|",
        row_of("processes", process),
        row_of("containers", containers),
        "",
    ]
    for name, figures in (("processes", process), ("containers", containers)):
        if figures and figures.wrong:
            lines += [f"Wrong with {name}:", "", *(f"- {text}" for text in figures.wrong[:20]), ""]
    return "\n".join(lines)


def row_of(name: str, figures: Figures | None) -> str:
    """Return a row of the table."""
    if figures is None:
        return f"| {name} | not measured | | | | | |"
    total = sum(figures.kills.values())
    named = total - figures.kills["random"]
    seconds = (
        [f"{value:.1f} s" for value in (median(figures.restart_seconds), max(figures.restart_seconds))]
        if figures.restart_seconds
        else ["", ""]
    )
    return f"| {name} | {total} | {named} | {figures.records} | {len(figures.wrong)} | {' | '.join(seconds)} |"


def is_good(figures: Figures) -> bool:
    """Return whether nothing went wrong and no restart took too long."""
    return not figures.wrong and all(seconds <= GOAL_SECONDS for seconds in figures.restart_seconds)


def main() -> None:
    """Kill, count, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=1000)
    parser.add_argument("--containers", type=int, default=0, metavar="N", help="so many more with containers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=FIGURES)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    process, containers = Figures(), None
    while (left := options.kills - sum(process.kills.values())) > 0:
        kill_often(list(kills(min(BATCH, left), chance)), process)
        print(f"{sum(process.kills.values())} kills, {len(process.wrong)} wrong", flush=True)
    engine = find_engine() if options.containers else None
    if engine:
        containers = Figures()
        points = ["container-created", "job-started", "job-noted", "record-begins", "record-written", "orphan-ended"]
        plan = [
            Kill(points[n // 2 % len(points)]) if n % 2 == 0 else Kill(seconds=chance.uniform(2, 15))
            for n in range(options.containers)
        ]
        kill_often(plan, containers, engine)
    options.output.with_suffix(".md").write_text(report(process, containers, options.seed), encoding="utf-8")
    told = {"schema": 2, "processes": vars(process), "containers": vars(containers) if containers else None}
    options.output.with_suffix(".json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    sys.exit(not all(is_good(figures) for figures in (process, containers) if figures))


if __name__ == "__main__":
    main()
