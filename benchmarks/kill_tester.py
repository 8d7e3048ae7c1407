"""Kill the harness of a results folder again and again and check what is left, with a stand-in for the app."""

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import psutil

from harness.base.errors import UserError
from harness.base.files.failpoints import VARIABLE
from harness.base.paths import CHECKOUT
from harness.campaign.bench.gpu_locks import gpu_lock_file
from harness.environments.environment import install_app
from harness.environments.executors.docker import LABEL
from harness.evidence.files.run_files import Intent
from harness.evidence.index import Index
from harness.evidence.index_file import index_file
from harness.evidence.records import Results
from harness.host.engine import Engine
from harness.host.fingerprint import read_host
from harness.host.processes.processes import variable_of
from harness.host.processes.run_processes import RUN_MARK

HERE = Path(__file__).resolve().parent
POLL_SECONDS = 0.01
# A restart should take less than this.
GOAL_SECONDS = 5.0
SHOWN = 2000
PATIENCE_SECONDS = 120.0
# A merged CSV that the harness accepts, with as many weekdays as any workload needs sessions; the stand-in reads none.
STAND_IN_BARS = "ts,open,high,low,close,volume,vix\n" + "".join(
    f"{date(2024, 1, 2) + timedelta(day)}T14:30:00Z,1,1,1,1,1,\n" for day in range(90)
)
REPEATS = 6
# The stack accepts any accelerator, because the stand-in is no stack for CPUs that could be installed.
STAND_IN_STACK, REAL_STACK = "host: {accelerator: any}", 'cpu: {accelerator: cpu, torch: "2.13.0"}'
MATRIX = """\
schema: 2
stacks: {STACK}
presets: {plain: {description: nothing set}}
workloads:
  trivial: {description: d, epochs: 1, batch_size: 64, time_limit: 60, synthetic: {sessions: 26}, lookback: 20}
selections: {default: {description: d, stacks: all, presets: all, workload: trivial}}
"""
GPU = "simd_count 96\ngfx_target_version 110000\ndrm_render_minor 128\n"


def write_stand_in(python: Path) -> None:
    """Write an interpreter that starts the stand-in for the app."""
    words = shlex.join([sys.executable, "-I", "-S", str(CHECKOUT / "harness" / "rehearsal" / "stand_in_app.py")])
    python.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    python.chmod(0o755)


@dataclass(frozen=True)
class Kill:
    """When the harness is killed: at a named point, or after some seconds."""

    point: str | None = None
    seconds: float = 0.0


@dataclass
class Figures:
    """The counts of a test.

    `wrong`: everything that should not have happened.
    `restart_seconds`: seconds of each restart until it began a run.
    """

    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    records: int = 0
    restart_seconds: list[float] = field(default_factory=list)

    def expect(self, condition: object, otherwise: str) -> None:
        """Add the text `otherwise` to `wrong` unless the condition holds."""
        if not condition:
            self.wrong.append(otherwise)


@dataclass(frozen=True)
class Place:
    """A results folder with all that `matrix run` needs.

    With `engine`, its runs are containers: of the real app, or of the stand-in that the images on `base` contain.
    """

    folder: Path
    engine: Engine | None = None
    base: str | None = None

    @property
    def repeats(self) -> int:
        """The number of runs of a campaign."""
        return 2 if self.engine else REPEATS

    @property
    def root(self) -> Path:
        """The root of the simulated host."""
        return self.folder / "root"

    @property
    def results(self) -> Results:
        """The results, which must survive the kills."""
        return Results(self.folder / "results")

    @property
    def said(self) -> str:
        """The output of all harnesses of this place."""
        return (self.folder / "said.txt").read_text(encoding="utf-8", errors="replace")

    def make(self) -> None:
        """Write everything except the results."""
        text = MATRIX.replace("STACK", REAL_STACK if self.engine else STAND_IN_STACK)
        (self.folder / "matrix.yaml").write_text(text, encoding="utf-8")
        (self.folder / "bars.csv").write_text(STAND_IN_BARS, encoding="utf-8")
        write_stand_in(self.folder / "python")
        node = self.root / "sys/class/kfd/kfd/topology/nodes/0"
        for place in (node, self.root / "proc", self.root / "dev", self.root / "run/lock"):
            place.mkdir(parents=True)
        (self.root / "run/lock").chmod(0o1777)
        (node / "properties").write_text(GPU, encoding="ascii")
        (node / "gpu_id").write_text("4711", encoding="ascii")

    def command(self) -> list[str]:
        """Return the command line of `matrix run`, which continues a campaign that was killed."""
        options = ["--matrix", str(self.folder / "matrix.yaml"), "--results", str(self.results.folder)]
        run = ["run", "--repeats", str(self.repeats)]
        matrix, data = str(CHECKOUT / ".venv" / "bin" / "matrix"), ["--data", str(self.folder / "bars.csv")]
        if self.engine:
            base, bars = (["--base", self.base], data) if self.base else ([], [])
            return [matrix, *base, *options, *run, "cpu-plain", "--executor", "docker", *bars]
        python = ["--python", str(self.folder / "python")]
        where = ["--executor", "process", *python, *data]
        return [matrix, "--root", str(self.root), *options, *run, "host-plain", *where]

    def start(self, point: str | None = None) -> subprocess.Popen[bytes]:
        """Start the harness; with `point`, the harness kills itself there."""
        variables = {**os.environ, VARIABLE: point or ""}
        with (self.folder / "said.txt").open("ab") as said:
            return subprocess.Popen(self.command(), stdout=said, stderr=said, env=variables, cwd=CHECKOUT)


@dataclass
class Tester:
    """Kills the harness of one place again and again, and checks what is left."""

    place: Place
    figures: Figures
    acknowledged: dict[str, bytes] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    killed: bool = False

    def kill(self, kill: Kill) -> bool:
        """Start the harness and kill it; return False if the harness ended before that."""
        point = (kill.point or "").partition("@")[0]
        if point.startswith("orphan"):
            # There must be an orphan first.
            self.kill(Kill("running"))
        if point == "index-rebuilt":
            index_file(self.place.results.folder).unlink(missing_ok=True)
        began = time.monotonic()
        process = self.place.start(kill.point)
        ready = False
        while process.poll() is None and time.monotonic() - began < PATIENCE_SECONDS:
            ready = ready or self._is_ready(process.pid, began)
            if kill.point is None and time.monotonic() - began > kill.seconds:
                process.kill()
                break
            time.sleep(POLL_SECONDS)
        else:
            self.figures.expect(process.poll() is not None, f"hung, to be killed by {kill}")
            process.kill()
        killed = process.wait() == -signal.SIGKILL
        self.killed |= killed
        self.figures.expect(
            killed or process.returncode == 0, f"ended with {process.returncode}: {self.place.said[-300:]}"
        )
        if killed:
            self.figures.kills[kill.point or "random"] += 1
        self._look_at_records()
        return killed

    def finish(self) -> None:
        """Let the harness finish the campaign, and check that nothing is lost or left."""
        began = time.monotonic()
        process = self.place.start()
        # No kill cuts this restart short, so a slow restart is timed as well.
        while process.poll() is None and time.monotonic() - began < PATIENCE_SECONDS:
            if self._is_ready(process.pid, began):
                break
            time.sleep(POLL_SECONDS)
        self.figures.expect(process.wait(PATIENCE_SECONDS * 4) == 0, f"could not go on: {self.place.said[-300:]}")
        self._look_at_records()
        results = self.place.results
        before = Index(results).rows()
        self.figures.expect(Index(results).rebuild() == [], "a record is damaged")
        after = [Index(results).row_of(record) for record in results.records()]
        rows = Index(results).rows()
        self.figures.expect(sorted(map(str, rows)) == sorted(map(str, after)), "the index is not what the folders hold")
        self.figures.expect(before == rows, "the index was not what it is when rebuilt")
        self.figures.expect(
            set(results.finished()) == {f.name for f in results.runs.glob("[!.]*")}, "a run has no record"
        )
        done = Counter((row.campaign, row.cell, row.repeat) for row in rows if row.outcome != "interrupted")
        for which, times in done.items():
            self.figures.expect(times == 1, f"{which} was run {times} times")
        for row in rows:
            self.figures.expect(row.outcome in ("completed", "interrupted"), f"{row.run_id}: {row.detail}")
        campaigns = len([*(results.folder / "campaigns").glob("*.json")])
        planned = campaigns * self.place.repeats
        self.figures.expect(len(done) == planned, f"{len(done)} runs are done of {planned}")
        self.figures.expect(not self._processes(), f"orphans: {self._processes()}")
        self._look_at_locks()
        if self.place.engine:
            filters = {"label": LABEL}
            left = self.place.engine.client.api.containers(all=True, filters=filters)
            mine = [found for found in left if str(results.runs) in found["Labels"][LABEL]]
            self.figures.expect(not mine, f"{len(mine)} containers are left")

    def _is_ready(self, pid: int, began: float) -> bool:
        """Return whether the harness has begun a run; if so, time it and check what it recovered."""
        if not self._has_begun_run(pid):
            return False
        seconds = time.monotonic() - began
        self._look_at_ready(pid)
        if self.killed:
            self.figures.restart_seconds.append(seconds)
        if self.killed and seconds > GOAL_SECONDS:
            print(f"a restart took {seconds:.1f} s, after:\n{self.place.said[-SHOWN:]}", file=sys.stderr, flush=True)
        return True

    def _has_begun_run(self, pid: int) -> bool:
        """Return whether this harness has begun a run, which means that the restart is done."""
        runs = self.place.results.runs
        names = {folder.name for folder in runs.glob("[!.]*")} - self.seen
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                intent = Intent.model_validate_json((runs / name / "intent.json").read_bytes())
                if intent.owner_pid == pid:
                    return True
                self.seen.add(name)
        return False

    def _look_at_ready(self, pid: int) -> None:
        for process, folder in self._processes().items():
            intent = self.place.results.intent(Path(folder).name)
            mine = intent is None or intent.owner_pid == pid
            self.figures.expect(mine, f"process {process} of {folder} still runs after a recovery")

    def _look_at_records(self) -> None:
        """Check that every earlier record is unchanged, and that every new record can be read."""
        results = self.place.results
        for run_id, content in self.acknowledged.items():
            file = results.folder_of(run_id).record
            self.figures.expect(file.exists() and file.read_bytes() == content, f"{run_id}: lost, or another")
        for run_id in set(results.finished()) - set(self.acknowledged):
            try:
                results.record(run_id)
            except UserError as error:
                self.figures.wrong.append(str(error))
            self.acknowledged[run_id] = results.folder_of(run_id).record.read_bytes()

    def _look_at_locks(self) -> None:
        for gpu in read_host(self.place.root).gpus if not self.place.engine else ():
            with gpu_lock_file(gpu, self.place.root).open("rb") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    self.figures.wrong.append(f"{stream.name} is stuck")
                self.figures.expect(not stream.read(), f"{stream.name} still names a run")

    def _processes(self) -> dict[int, str]:
        """Return the processes of runs of this place, by pid, with the run's folder."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mark = variable_of(process.pid, RUN_MARK) or ""
                if mark.startswith(str(self.place.results.runs)) and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = mark
        return found


def kill_often(plan: Sequence[Kill], figures: Figures, engine: Engine | None = None, base: str | None = None) -> None:
    """Carry out a plan of kills on the harness of one results folder, then check what is left. As in `Place`."""
    with tempfile.TemporaryDirectory(prefix="matrix-kills-", dir="/tmp") as folder:
        place = Place(Path(folder), engine, base)
        place.make()
        tester = Tester(place, figures)
        # The app and the image are made first, because restarts that wait for them are not measured here.
        install_app()
        if engine:
            tester.finish()
        for kill in plan:
            # If the harness had nothing left to do, the next start begins a new campaign.
            tester.kill(kill)
        tester.finish()
        figures.records += len(tester.acknowledged)
        if figures.wrong:
            shutil.copytree(place.results.folder, Path(tempfile.mkdtemp(prefix="matrix-kills-wrong-")) / "results")
