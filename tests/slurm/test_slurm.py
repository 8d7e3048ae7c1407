"""Tests of a campaign on a real Slurm with all that can happen to jobs: each run counts once, or is run again."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from harness.base.files.storage import write_durably
from harness.doctor.ask import ask_slurm
from harness.evidence.app_reports.progress import last_lines
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import NOT_BEGUN, counts_of
from harness.host.fingerprint import read_host
from harness.host.processes.processes import variable_of
from harness.host.processes.run_processes import RUN_MARK
from harness.rehearsal.stand_in_app import HELD, SLOW, STEPS
from harness.slurm.nodes import note_node
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.conftest import write_matrix_and_stand_in

RUNS = 24
PATIENCE_SECONDS = 200.0
SILENT_SECONDS = 7.0
# Within this time, slurmctld has saved its state.
SAVED_SECONDS = 6.0


@dataclass
class Campaign:
    """`matrix run --on slurm`, which a test may kill and start again."""

    place: Path
    runs: int
    options: tuple[str, ...] = ("--on", "slurm")
    environment: Mapping[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def results(self) -> Results:
        return Results(self.place / "results")

    @property
    def command(self) -> list[str]:
        words = ["--matrix", "matrix.yaml", "--results", "results", "run", "host-plain"]
        words += [] if "--all" in self.options else ["--repeats", str(self.runs)]
        words += [*self.options, "--executor", "process", "--python", "python", "--data", "bars.csv"]
        return [sys.executable, "-P", "-m", "harness", *words]

    def start(self) -> None:
        with (self.place / "said.txt").open("ab") as said:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.place,
                env=None if self.environment is None else dict(self.environment),
                stdout=said,
                stderr=said,
            )

    def start_and_finish(self) -> None:
        self.start()
        assert self.finish() == 0, (self.place / "said.txt").read_text()

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def finish(self, seconds: float = PATIENCE_SECONDS) -> int:
        assert self.process
        return self.process.wait(seconds)

    def running(self) -> list[Intent]:
        return [intent for intent in self.results.unfinished([]) if intent.scheduled]


def wait(until: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def job(intent: Intent) -> str:
    assert intent.scheduled
    return intent.scheduled.job


def node_of(intent: Intent) -> str:
    assert intent.scheduled
    return intent.scheduled.node


def left_of(place: Path) -> list[psutil.Process]:
    """Return every process of a run of this folder that is left."""
    found = []
    for process in psutil.process_iter():
        try:
            if (variable_of(process.pid, RUN_MARK) or "").startswith(f"{place}/"):
                found.append(process)
        except OSError:
            continue
    return found


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Keep all runs of this folder from starting a further step meanwhile."""
    (place / HELD).touch()
    try:
        yield
    finally:
        (place / HELD).unlink()


def has_step_left(campaign: Campaign, run: Intent) -> bool:
    """Return whether a run trains and has at least one step left, besides a step that it may have started meanwhile."""
    line = last_lines(campaign.results.folder_of(run.run_id).work).get(0)
    return line is not None and line.phase in ("first-step", "step") and line.done <= STEPS - 2


def note_as_known(results: Results, nodes: Iterable[str]) -> None:
    """Note these nodes as known, because the campaign leaves out a node that does not answer its question at once."""
    here = read_host(Path("/"))
    for node in nodes:
        note_node(results, node, here)


@dataclass
class Faults:
    """Faults that happen to the runs of a campaign; `hit`: the outcomes that the affected runs must have, by run id."""

    slurm: Cluster
    campaign: Campaign
    hit: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def next_victim(self, outcome: str) -> Iterator[Intent]:
        """Yield a run that trains and was not hit yet; meanwhile no run reaches its end."""
        found: list[Intent] = []

        def there() -> bool:
            new = [one for one in self.campaign.running() if one.run_id not in self.hit]
            found[:] = [one for one in new if has_step_left(self.campaign, one)]
            return bool(found)

        with held(self.campaign.place):
            wait(there)
            self.hit[found[0].run_id] = outcome
            yield found[0]

    def recorded(self, run: Intent) -> bool:
        return self.campaign.results.has_record(run.run_id)

    def cancel_running(self) -> None:
        with self.next_victim("interrupted") as run:
            self.slurm.ask("scancel", job(run))
            wait(lambda: self.recorded(run))

    def cancel_waiting(self) -> None:
        words = ("squeue", "--noheader", "--states=PENDING", "--partition=gpus", "--format=%i")
        with held(self.campaign.place):
            wait(lambda: self.slurm.ask(*words))
            self.slurm.ask("scancel", self.slurm.ask(*words).split()[-1])

    def kill_harness(self) -> None:
        with self.next_victim("interrupted") as run:
            os.kill(run.owner_pid, signal.SIGKILL)

    def preempt(self) -> None:
        with self.next_victim("interrupted") as run:
            words = ("--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
            self.slurm.ask("sbatch", f"--nodelist={node_of(run)}", *words)
            wait(lambda: self.recorded(run))

    def kill_submitter(self) -> None:
        self.campaign.kill()
        time.sleep(1)
        self.campaign.start()

    def kill_controller(self) -> None:
        self.slurm.kill("slurmctld")
        time.sleep(6)
        self.slurm.start("slurmctld")

    def host_down(self) -> None:
        """Make a run look as if it began in an earlier boot, and kill its harness."""
        with self.next_victim("host-fault") as victim:
            # The boot is changed first, because another job of this machine would notice that the harness is gone.
            self.begun_in_another_boot(victim)
            os.kill(victim.owner_pid, signal.SIGKILL)

    def begun_in_another_boot(self, victim: Intent) -> None:
        down = victim.model_copy(update={"host": victim.host.model_copy(update={"boot_id": "the one before"})})
        file = self.campaign.results.run_folder(victim.run_id) / "intent.json"
        write_durably(file, down.model_dump_json(by_alias=True).encode())

    def silence_controller(self, seconds: float = SILENT_SECONDS) -> None:
        """Stop slurmctld for a while: it keeps its connections but answers nothing."""
        self.slurm.signal("slurmctld", signal.SIGSTOP)
        time.sleep(seconds)
        self.slurm.signal("slurmctld", signal.SIGCONT)

    def node_dies(self) -> None:
        """Kill a node until Slurm sees that it is down; it comes back in another boot."""
        with self.next_victim("host-fault") as victim:
            # The boot is changed first, as in `host_down`.
            self.begun_in_another_boot(victim)
            self.slurm.kill(node_of(victim))
            self.end(victim)
        words = ("sinfo", "--noheader", "--partition=gpus", f"--nodes={node_of(victim)}", "--format=%t")
        wait(lambda: self.slurm.ask(*words).startswith("down"))
        self.slurm.start(node_of(victim))

    def end(self, victim: Intent) -> None:
        """Kill everything of a job at once: its step, the harness and the run."""
        with_conf = f"SLURM_CONF={self.slurm.conf}".encode()
        for one in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                step = one.name() == "slurmstepd" and f"[{job(victim)}." in " ".join(one.cmdline())
                if step and with_conf in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0"):
                    one.kill()
        with suppress(ProcessLookupError):
            os.kill(victim.owner_pid, signal.SIGKILL)
        for one in left_of(self.campaign.place):
            with suppress(psutil.Error, OSError):
                if victim.run_id in (variable_of(one.pid, RUN_MARK) or ""):
                    one.kill()


@pytest.fixture(scope="module", autouse=True)
def limited(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """Yield a campaign of one run that reaches Slurm's time limit while the tests run.

    Slurm has no limit below a minute, and checks it twice a minute. The campaign has its own cluster, because at the
    limit the harness asks slurmctld why a job was ended, and other tests kill their slurmctld.
    """
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    place = tmp_path_factory.mktemp("limited")
    write_matrix_and_stand_in(place)
    (place / SLOW).write_text("100")
    with cluster(tmp_path_factory.mktemp("short"), 1, 0, kill_wait=15) as short:
        campaign = Campaign(place, 1, ("--on", "limited"), short.environment)
        campaign.start()
        yield campaign
        if campaign.process and campaign.process.poll() is None:
            campaign.kill()
    for process in left_of(place):
        process.kill()


@pytest.fixture(autouse=True)
def _every_node_takes_jobs(slurm: Cluster) -> None:
    # Slurm drains a node on which it still knows a killed job, whichever test killed it.
    slurm.revive()


def test_every_run_counts_once_whatever_happens_to_jobs(slurm: Cluster, place: Path) -> None:
    (place / SLOW).write_text("0.4")
    campaign = Campaign(place, RUNS)
    campaign.start()
    faults = Faults(slurm, campaign)
    with held(place):
        wait(lambda: len(campaign.running()) == len(slurm.nodes))
        # A slurmctld that is killed before it has saved its state takes ended jobs for running ones for a minute.
        time.sleep(SAVED_SECONDS)
        faults.kill_controller()
    for happens in (
        faults.cancel_running,
        faults.cancel_waiting,
        faults.kill_harness,
        faults.preempt,
        faults.kill_submitter,
        faults.silence_controller,
        faults.host_down,
        faults.node_dies,
    ):
        happens()
    assert campaign.finish() == 1
    said = (place / "said.txt").read_text()
    records = {record.intent.run_id: record for record in campaign.results.records()}
    assert {name: records[name].outcome for name in faults.hit} == faults.hit, said
    check(campaign, records)
    by = [records[name].interrupted_by for name, outcome in faults.hit.items() if outcome == "interrupted"]
    assert by == ["scheduler", "harness-killed", "scheduler"]
    assert {one.diagnosis for one in records.values() if one.outcome not in ("completed", "interrupted")} == {
        "host-down"
    }
    assert len({node_of(one.intent) for one in records.values()}) > 1
    assert left_of(place) == []
    # Slurm takes a job of the node that went down for running until the node is asked for the job.
    wait(lambda: slurm.ask("squeue", "--noheader", "--partition=gpus") == "")


def check(campaign: Campaign, records: dict[str, Record]) -> None:
    """Check that each planned run has one record that counts, and that the index agrees."""
    made = [name for name, one in records.items() if one.outcome != "interrupted" and one.diagnosis != NOT_BEGUN]
    planned = Counter(re.sub(r"-again\d+$", "", name) for name in made)
    assert set(planned.values()) == {1}
    assert len(planned) == campaign.runs
    counted = [name for name, one in counts_of(campaign.results).items() if one.counts]
    assert len(counted) == campaign.runs
    assert len(Index(campaign.results).rows()) == len(records)


def test_the_doctor_names_hooks_that_are_not_installed(slurm: Cluster) -> None:
    assert [(one.name, one.programs, one.ours) for one in ask_slurm()] == [("Prolog", (), None), ("Epilog", (), None)]


def test_a_goal_is_pursued_on_all_nodes_at_once(slurm: Cluster, place: Path) -> None:
    campaign = Campaign(place, 0, ("--on", "slurm", "--all", "--budget", "10m"))
    note_as_known(campaign.results, slurm.nodes)
    with held(place):
        campaign.start()
        wait(lambda: {node_of(run) for run in campaign.running()} == set(slurm.nodes))
    wait(lambda: len(list(campaign.results.records())) > len(slurm.nodes))
    assert campaign.process
    campaign.process.send_signal(signal.SIGINT)
    assert campaign.finish() == 130, (place / "said.txt").read_text()
    wait(lambda: slurm.ask("squeue", "--noheader", "--partition=gpus") == "")
    assert len({record.intent.campaign for record in campaign.results.records()}) == 1


def test_a_run_that_the_limit_of_its_job_ends_has_failed(limited: Campaign) -> None:
    assert limited.finish() == 1, (limited.place / "said.txt").read_text()
    (record,) = limited.results.records()
    assert (record.outcome, record.diagnosis, record.detail) == (
        "failed",
        "time-limit",
        "the scheduler ended its job at the time limit",
    )


@pytest.mark.long
def test_where_the_queue_is_full_the_rest_waits(
    slurm: Cluster, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    with cluster(tmp_path_factory.mktemp("full"), 2, 0, most_jobs=3, job_age=5) as small:
        campaign = Campaign(place, 6, environment=small.environment)
        campaign.start_and_finish()
        said = (small.folder / "slurmctld.log").read_text()
        assert "MaxJobCount limit from slurm.conf reached" in said
    check(campaign, {record.intent.run_id: record for record in campaign.results.records()})
