"""Measure the dispatcher on a real Slurm: kills at random moments, cost per run, long queues; and simulate settling.

One slurmctld and four slurmd run on this host, with a stand-in for the app. Writes docs/evidence/slurm-figures.md.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.kill_tester import STAND_IN_BARS, write_stand_in
from benchmarks.pages import machine_and_load, today
from benchmarks.slurm_faults import faults
from harness.base.paths import CHECKOUT
from harness.evidence.verdicts.counting import counts_of
from harness.search.goal import Goal
from harness.search.schedule import Candidate, Tally
from harness.search.spread import candidates_at_once
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.conftest import MATRIX
from tests.slurm.test_slurm import Campaign, left_of

FIGURES = CHECKOUT / "docs" / "evidence" / "slurm-figures.md"
PARTS = ("faults", "kills", "cost", "queue", "simulation")
LONGEST_SECONDS = 1800.0
COST_RUNS, QUEUED = 8, 2000
RUNS, MOST_AGAIN = 24, 50
# Runs that begin and end while the others are submitted.
NODE_RUNS = 10
CELLS, NODES, WORLDS = 40, (1, 2, 4, 8, 16), 5
LOOK = "squeue"


def main() -> None:
    """Measure the parts that are asked for; the page keeps what it has on the other parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=LONGEST_SECONDS, help="after which no further kill is begun")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and victims of kills")
    asked = parser.parse_args()
    parts: Mapping[str, Callable[[], list[str]]] = {
        "faults": faults,
        "kills": lambda: kills(asked.kills, asked.seconds, asked.seed),
        "cost": cost,
        "queue": queue,
        "simulation": simulation,
    }
    for name in asked.parts:
        keep(name, parts[name]())
    sys.stdout.write(FIGURES.read_text(encoding="utf-8"))


def keep(name: str, lines: list[str]) -> None:
    """Write a part into the page, replacing its earlier content."""
    before = FIGURES.read_text(encoding="utf-8") if FIGURES.exists() else ""
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)\n*(?=^## |\Z)", before, re.MULTILINE | re.DOTALL))
    sections[name] = "\n".join([f"Measured {today()}, {machine_and_load()}.", "", *lines])
    text = (
        "# Runs on Slurm, measured\n\nWritten by `make bench-slurm`. One host acts as all nodes, and a stand-in acts "
    )
    text += "as the app. No GPU and no network file system were used.\n"
    text += "".join(f"\n## {one}\n\n{sections[one]}\n" for one in PARTS if one in sections)
    FIGURES.write_text(text, encoding="utf-8")


@contextmanager
def running(most_jobs: int = 10000, nodes: int = 4) -> Iterator[tuple[Cluster, Path]]:
    """Run a cluster; yield it and a folder with a matrix file, data and a stand-in for the app."""
    with tempfile.TemporaryDirectory(prefix="s") as folder, tempfile.TemporaryDirectory() as work:
        place = Path(work)
        (place / "matrix.yaml").write_text(MATRIX)
        (place / "bars.csv").write_text(STAND_IN_BARS)
        write_stand_in(place / "python")
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        with cluster(Path(folder), nodes, kill_wait=5, most_jobs=most_jobs) as slurm:
            os.environ.update(slurm.environment)
            yield slurm, place


@dataclass
class Killer:
    """Kills the submitter, a slurmd or the slurmctld, and starts it again."""

    slurm: Cluster
    campaign: Campaign
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def kill(self) -> None:
        """Kill one of the three at random."""
        victim = self.chance.choice(("submitter", "slurmd", "slurmctld"))
        if victim == "submitter":
            self.campaign.kill()
            self.campaign.start()
        else:
            name = self.chance.choice(self.slurm.nodes) if victim == "slurmd" else victim
            self.slurm.kill(name, signal.SIGKILL)
            time.sleep(self.chance.uniform(0, 1))
            self.slurm.start(name)
        self.done[victim] += 1


def kills(count: int, seconds: float, seed: int) -> list[str]:
    """Run campaigns of short runs until `count` kills are made or `seconds` are over; return the lines of the page."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    done: Counter[str] = Counter()
    planned = counted = twice = left = campaigns = again = 0
    while done.total() < count and time.monotonic() < until:
        with running() as (slurm, place):
            campaign = Campaign(place, RUNS)
            campaign.start()
            killer = Killer(slurm, campaign, chance)
            assert campaign.process
            while campaign.process.poll() != 0:
                if campaign.process.poll() is not None:
                    # The command said why it could not finish, and the same command continues.
                    again += 1
                    campaign.start()
                with suppress(subprocess.TimeoutExpired):
                    campaign.process.wait(chance.uniform(0.2, 3))
                more = done.total() + killer.done.total() < count and time.monotonic() < until
                if more and campaign.process.poll() is None:
                    killer.kill()
                assert again < MOST_AGAIN, (place / "said.txt").read_text()[-4000:]
            records = [record for record in campaign.results.records() if record.outcome != "interrupted"]
            of_planned = Counter(re.sub(r"-again\d+$", "", record.intent.run_id) for record in records)
            counts = counts_of(campaign.results)
            planned += campaign.runs
            counted += len(of_planned)
            twice += sum(number - 1 for number in of_planned.values())
            assert all(counts[record.intent.run_id].counts for record in records)
            left += len(left_of(place))
            done += killer.done
            campaigns += 1
            print(
                f"{done.total()} kills, {counted} of {planned} runs, {twice} twice, {left} left, {again} again",
                flush=True,
            )
    which = ", ".join(f"{number} of the {name}" for name, number in sorted(done.items()))
    return [
        f"{done.total()} kills with KILL at random moments ({which}) over {campaigns} campaigns of {RUNS} short runs; "
        f"{again} times, a command that was not killed ended with an error and was typed again.",
        "",
        "| runs planned | counted once | lost | counted twice | processes left |",
        "|---|---|---|---|---|",
        f"| {planned} | {counted - twice} | {planned - counted} | {twice} | {left} |",
    ]


def cost() -> list[str]:
    """Compare the seconds of a campaign with those of bare `sbatch` of the same scripts, each on one node."""
    with running(nodes=1) as (slurm, place):
        Campaign(place, 1).start_and_finish()
        began = time.monotonic()
        campaign = Campaign(place, COST_RUNS)
        campaign.start_and_finish()
        by_campaign = time.monotonic() - began
        scripts = sorted((place / "results" / "slurm").glob("2*.sh"))[-COST_RUNS:]
        began = time.monotonic()
        for script in scripts:
            run_id = script.stem
            text = script.read_text().replace(run_id, f"bare-{run_id}"[:110])
            bare = script.with_name(f"bare-{script.name}")
            bare.write_text(text)
            slurm.ask("sbatch", "--parsable", str(bare))
        while slurm.ask(LOOK, "--noheader"):
            time.sleep(0.1)
        by_sbatch = time.monotonic() - began
        made = sum(1 for record in campaign.results.records() if record.intent.run_id.startswith("bare-"))
    assert made == COST_RUNS, made
    return [
        f"{COST_RUNS} runs, one after the other, on one node, measured from the command to its end:",
        "",
        "| by `matrix run --on slurm`, s | by bare `sbatch` of the same scripts, s | more per run, s | goal |",
        "|---|---|---|---|",
        f"| {by_campaign:.1f} | {by_sbatch:.1f} | {(by_campaign - by_sbatch) / COST_RUNS:.2f} | at most 0.5 |",
    ]


def queue() -> list[str]:
    """Measure the memory needed to follow thousands of queued runs, and how often slurmctld is asked."""
    with running(nodes=1) as (slurm, place):
        asked = place / "asked.txt"
        wrapper = place / "bin" / LOOK
        wrapper.parent.mkdir()
        real = subprocess.run(["which", LOOK], capture_output=True, text=True, check=True).stdout.strip()
        wrapper.write_text(f'#!/bin/sh\ndate +%s.%N >> {asked}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
        campaign = Campaign(place, QUEUED, environment={**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"})
        (place / "slow").write_text("1000")
        began = time.monotonic()
        campaign.start()
        assert campaign.process
        process, most, queued = psutil.Process(campaign.process.pid), 0, 0
        while queued < QUEUED - NODE_RUNS and time.monotonic() - began < LONGEST_SECONDS:
            time.sleep(2)
            most = max(most, process.memory_info().rss)
            queued = len(slurm.ask(LOOK, "--noheader", "--format=%i").split())
        submitted = time.monotonic() - began
        followed_from = time.time()
        until = time.monotonic() + 120
        before = process.cpu_times()
        while time.monotonic() < until:
            time.sleep(1)
            most = max(most, process.memory_info().rss)
        used = process.cpu_times()
        moments = [float(line) for line in asked.read_text().split()]
        following = [moment for moment in moments if moment >= followed_from]
        gaps = [later - sooner for sooner, later in pairwise(following)]
        campaign.process.send_signal(signal.SIGINT)
        campaign.process.wait(300)
    processor = (used.user + used.system - before.user - before.system) / 120
    return [
        f"{queued:,} queued runs, submitted in {submitted:.0f} s and followed for 120 s:",
        "",
        "| most memory, MB | questions in 120 s | least seconds between two | processor | goal |",
        "|---|---|---|---|---|",
        f"| {most / 1e6:.0f} | {len(following)} | {min(gaps, default=0):.1f} | {processor:.0%} | "
        "under 200 MB, one question in 5 s |",
    ]


def simulation() -> list[str]:
    """Simulate how long it takes to settle 40 cells on several nodes, as `--all` spreads runs."""
    rows = []
    alone = 0.0
    for nodes in NODES:
        taken = [settle(nodes, random.Random(world)) for world in range(WORLDS)]
        hours = sum(seconds for seconds, _ in taken) / WORLDS / 3600
        runs = sum(count for _, count in taken) / WORLDS
        alone = alone or hours
        rows.append(f"| {nodes} | {hours:.1f} | {alone / nodes:.1f} | {alone / nodes / hours:.0%} | {runs:.0f} |")
    return [
        f"Simulated: `--all` over {CELLS} cells, in "
        f"{WORLDS} worlds. A quarter of the cells always fail, and a quarter fail half of the time. A run that passes "
        "takes 3 to 5 minutes, a run that fails 1 to 5. This was not measured on nodes.",
        "",
        "| nodes | hours, mean | ideal | of it | runs, mean |",
        "|---|---|---|---|---|",
        *rows,
    ]


def settle(nodes: int, chance: random.Random) -> tuple[float, int]:
    """Return the seconds until every cell is settled, and the number of runs."""
    goal = Goal(0.8, 0.9, every=True)
    cells = [Candidate(f"c{number}", f"s{number // 4}", "plain", "cpu") for number in range(CELLS)]
    rates = {cell: (0.0, 0.5, 1.0, 1.0)[number % 4] for number, cell in enumerate(cells)}
    tallies: dict[Candidate, Tally] = {}
    seconds, runs = 0.0, 0
    while at_once := candidates_at_once(cells, tallies, goal, 1, {}, nodes):
        lasted = []
        for cell in at_once:
            passes = chance.random() < rates[cell]
            lasted.append(chance.uniform(180, 300) if passes else chance.uniform(60, 300))
            before = tallies.get(cell, Tally())
            tallies[cell] = Tally(before.passes + passes, before.runs + 1)
        seconds += max(lasted)
        runs += len(at_once)
    return seconds, runs


if __name__ == "__main__":
    main()
