"""Run a campaign of sixty runs on four nodes through every kind of fault, on a shared folder: slow, stale and full.

`benchmarks.slurm` calls this and writes the figures to its page.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kill_tester import STAND_IN_BARS, write_stand_in
from harness.base.paths import CHECKOUT
from harness.evidence.verdicts.counting import counts_of
from harness.rehearsal.stand_in_app import SLOW
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.conftest import MATRIX
from tests.slurm.test_slurm import Campaign, Faults, left_of

RUNS, NODES = 60, 4
MOST_AGAIN = 20


SILENT_SECONDS, FULL_SECONDS = 45.0, 20.0
QUEUED_AT_MOST, FOLDER_BYTES = 20, 4 << 30
STALE_SECONDS, CLOCK_SECONDS = 5, 300
FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib64/faketime/libfaketime.so.1")
# A prolog that sets the clock of one node's jobs ahead.
TASK_PROLOG = """\
#!/bin/sh
[ "$SLURMD_NODENAME" = n4 ] || exit 0
echo export LD_PRELOAD={library}
echo export FAKETIME=+{seconds}s FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
"""


@dataclass
class MoreFaults(Faults):
    """Further faults: of nodes, of slurmctld, of the shared folder and of the user who runs the command."""

    full: Path | None = None

    def end_without_record(self) -> None:
        """Kill everything of a job at once, its step too, while its node goes on."""
        with self.next_victim("interrupted") as victim:
            self.end(victim)

    def controller_is_silent(self) -> None:
        """Stop slurmctld for most of a minute; it keeps its connections but does not answer."""
        self.silence_controller(SILENT_SECONDS)

    def folder_is_full(self) -> None:
        """Fill the results folder, so that nothing can be written for a while."""
        if self.full is None:
            return
        ballast = self.full / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while stream.write(bytes(1 << 16)):
                pass
        time.sleep(FULL_SECONDS)
        ballast.unlink()

    def other_umask(self) -> None:
        """Run the command again with a umask that lets no other user read its files."""
        self.campaign.kill()
        before = os.umask(0o077)
        try:
            self.campaign.start()
        finally:
            os.umask(before)


def faults() -> list[str]:
    """Run one campaign through all faults, and return the lines of the page."""
    with _running() as (slurm, place, full, clock):
        (place / SLOW).write_text("0.3")
        slow = {"LD_PRELOAD": str(place / "slow.so"), "STALE_SECONDS": str(STALE_SECONDS)}
        campaign = Campaign(place, RUNS, environment={**os.environ, **slow})
        began = time.monotonic()
        campaign.start()
        several = MoreFaults(slurm, campaign, full=full)
        happened = []
        for happens in _all(several):
            if campaign.process and campaign.process.poll() is not None:
                # The command said why it could not finish, and the same command continues.
                campaign.start()
            happens()
            happened.append(happens.__name__.replace("_", " "))
            print(f"{time.monotonic() - began:.0f} s: {happened[-1]}", flush=True)
        again = 0
        while campaign.finish(1200) not in (0, 1) or _counted(campaign) < RUNS:
            again += 1
            assert again < MOST_AGAIN, (place / "said.txt").read_text()[-4000:]
            campaign.start()
        return _figures(campaign, several, slurm, happened, clock, time.monotonic() - began)


def _all(several: MoreFaults) -> tuple[Callable[[], None], ...]:
    return (
        several.cancel_running,
        several.kill_submitter,
        several.node_dies,
        several.preempt,
        several.controller_is_silent,
        several.folder_is_full,
        several.end_without_record,
        several.other_umask,
        several.node_dies,
        several.cancel_waiting,
        several.kill_harness,
        several.kill_controller,
        several.host_down,
    )


def _counted(campaign: Campaign) -> int:
    return sum(one.counts for one in counts_of(campaign.results).values())


def _figures(
    campaign: Campaign, several: MoreFaults, slurm: Cluster, happened: list[str], clock: bool, seconds: float
) -> list[str]:
    records = {record.intent.run_id: record for record in campaign.results.records()}
    outcomes = Counter(record.outcome for record in records.values())
    other = {name: (records[name].outcome, wanted) for name, wanted in several.hit.items()}
    other = {name: pair for name, pair in other.items() if pair[0] != pair[1]}
    print(f"other outcomes than those that were to be: {other}", flush=True)
    counted = Counter(re.sub(r"-again\d+$", "", name) for name, one in records.items() if one.outcome != "interrupted")
    words = [sys.executable, "-P", "-m", "harness", "--matrix", "matrix.yaml", "--results", "results"]
    subprocess.run([*words, "report"], cwd=campaign.place, check=True, capture_output=True)
    said = subprocess.run([*words, "status", "--json"], cwd=campaign.place, check=True, capture_output=True)
    reported = sum(one["runs"] for one in json.loads(said.stdout)["verdicts"])
    closed = [
        file
        for file in (*campaign.results.runs.glob("*/*.json"), *campaign.results.runs.iterdir())
        if not file.stat().st_mode & 0o040
    ]
    queue = slurm.ask("squeue", "--noheader")
    ahead = f"the clock of one node {CLOCK_SECONDS // 60} minutes ahead" if clock else "clocks alike (no libfaketime)"
    full = "that filled up" if several.full else "that never filled up (not root)"
    return [
        f"{RUNS} runs over {NODES} nodes, {seconds:.0f} s, {ahead}, at most {QUEUED_AT_MOST} jobs in the queue, on a "
        f"folder {full}, answers late (2 ms, half a second once in 200 times) and shows the submitter new files "
        f"{STALE_SECONDS} s late. In turn: {', '.join(happened)}. "
        "A run that ends before its fault comes has an outcome other than meant.",
        "",
        "| runs planned | counted once | lost | counted twice | run again | in the report | processes left | jobs left "
        "| files others cannot read | outcomes other than meant |",
        "|---|---|---|---|---|---|---|---|---|---|",
        f"| {RUNS} | {sum(count == 1 for count in counted.values())} | {RUNS - len(counted)} | "
        f"{sum(count - 1 for count in counted.values())} | {outcomes['interrupted']} | {reported} | "
        f"{len(left_of(campaign.place))} | {len(queue.splitlines())} | {len(closed)} | {len(other)} |",
    ]


@contextmanager
def _running() -> Iterator[tuple[Cluster, Path, Path | None, bool]]:
    """Run a cluster; yield it, a folder with the rest, its part that can fill up, and whether a clock is ahead."""
    with tempfile.TemporaryDirectory(prefix="s") as folder, tempfile.TemporaryDirectory() as work:
        place = Path(work)
        place.chmod(0o755)
        (place / "matrix.yaml").write_text(MATRIX)
        (place / "bars.csv").write_text(STAND_IN_BARS)
        write_stand_in(place / "python")
        source = CHECKOUT / "benchmarks" / "slow_folder.c"
        words = ["cc", "-O1", "-shared", "-fPIC", "-o", str(place / "slow.so"), str(source), "-ldl"]
        subprocess.run(words, check=True)
        with _small(place / "results") as full:
            # The folder is shared by a group.
            (place / "results").chmod(0o2775)
            library = _faketime()
            more = _task_prolog(place, library) if library else ""
            os.environ["XDG_STATE_HOME"] = str(place / "state")

            with cluster(Path(folder), NODES, most_jobs=QUEUED_AT_MOST, job_age=10, more=more) as slurm:
                os.environ.update(slurm.environment)
                yield slurm, place, full, bool(library)


@contextmanager
def _small(folder: Path) -> Iterator[Path | None]:
    """Create a folder as a small file system, if that is allowed; yield the folder then, or else None."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={FOLDER_BYTES}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(words, check=False, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _faketime() -> Path | None:
    named = os.environ.get("FAKETIME_LIBRARY")
    found = [Path(named)] if named else [file for one in FAKETIME for file in Path("/").glob(one.lstrip("/"))]
    return found[0] if found else None


def _task_prolog(place: Path, library: Path) -> str:
    file = place / "task-prolog"
    file.write_text(TASK_PROLOG.format(library=library, seconds=CLOCK_SECONDS))
    file.chmod(0o755)
    return f"TaskProlog={file}"
