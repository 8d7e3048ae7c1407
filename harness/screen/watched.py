"""A read-only view, from files, of what any process of this host is running with a results folder."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from harness.base.errors import UserError
from harness.base.files.storage import read_regular
from harness.campaign.campaign_file import parse_campaign
from harness.campaign.under_way import UnderWay, under_way
from harness.evidence.app_reports.program_progress import ProgramProgress, progress_of
from harness.evidence.app_reports.progress import last_lines
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.index import Index
from harness.evidence.records import Results, owner_alive
from harness.evidence.row import Row, data_name, family_of_intent
from harness.evidence.verdicts.counting import counts_of
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.host.processes.processes import boot_id
from harness.matrix.cells import Matrix
from harness.screen.live import Current, Scene, Stall, expected_end, squares_of
from harness.training.state import TRAININGS_FOLDER

T = TypeVar("T")

LOCKS = Path("/proc/locks")
# Time in seconds by which a run on another host may exceed its limit before it is taken to be over.
# This host cannot look at its processes; the time allows for the checks around a run and for a differing clock.
ELSEWHERE_SECONDS = 3600.0


@dataclass(frozen=True)
class HeldCampaign:
    """A campaign that a process is running. `runs` is None if their number depends on the campaign's goal."""

    id: str
    cells: tuple[str, ...]
    started: float
    runs: int | None


@dataclass(frozen=True)
class Snapshot:
    """The state at one moment: campaigns, current runs, and the records that are new since the previous snapshot.

    `trains`: whether a supervisor holds the lock of a training, also between two attempts.
    `under_way`: the running commands, with their notes of what they do.
    """

    campaigns: tuple[HeldCampaign, ...] = ()
    running: tuple[Intent, ...] = ()
    finished: tuple[Record, ...] = ()
    trains: bool = False
    under_way: tuple[UnderWay, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Return whether there is anything to watch."""
        return bool(self.campaigns or self.running or self.trains or self.under_way)

    @property
    def steps(self) -> tuple[UnderWay, ...]:
        """Return the activities that take time while no run is going on."""
        return () if self.running else tuple(one for one in self.under_way if one.doing)


@dataclass
class Watched:
    """A results folder that is polled. The files of a run are not opened again once its record is known."""

    results: Results
    matrix: Matrix
    _finished: frozenset[str] | None = None
    _currents: dict[str, Current] = field(default_factory=dict)
    _programs: dict[str, ProgramProgress] = field(default_factory=dict)
    _rows: list[Row] = field(default_factory=list)
    _indexed: frozenset[str] | None = None
    _wanted: set[tuple[str, str, str, str]] = field(default_factory=set)
    _began: float | None = None

    def look(self) -> Snapshot:
        """Return the present state of the folder."""
        # Read the locks before the runs: a campaign releases its lock only after its last run.
        locked = locked_inodes()
        campaigns = tuple(held_campaigns(self.results, locked))
        trains = any(_is_in(locked, file) for file in (self.results.folder / TRAININGS_FOLDER).glob("*.lock"))
        names, before = _run_names(self.results), self._finished
        known = before or frozenset()
        self._finished = known | {name for name in names - known if self.results.has_record(name)}
        intents = (_readable(self.results.intent, name) for name in sorted(names - self._finished))
        records = (
            _readable(self.results.record, name) for name in sorted(self._finished - known) if before is not None
        )
        return Snapshot(
            campaigns,
            tuple(intent for intent in intents if intent and _goes_on(intent)),
            tuple(record for record in records if record and self._is_of_here(record)),
            trains,
            tuple(under_way(self.results)),
        )

    def scene(self, look: Snapshot, now: float) -> Scene:
        """Return the scene that shows a snapshot."""
        self._currents = {
            intent.run_id: current_of(self._currents.get(intent.run_id), intent, self.results, now, self._lines(intent))
            for intent in look.running
        }
        self._read_index()
        ours = {campaign.id for campaign in look.campaigns}
        ids = dict.fromkeys([c for campaign in look.campaigns for c in campaign.cells] + [i.cell for i in look.running])
        # The stages of a campaign try presets that its plan does not have.
        ids |= dict.fromkeys(row.cell for row in self._rows if row.campaign in ours)
        made = [row for row in self._rows if row.campaign in ours and row.outcome != "interrupted"]
        counts = [campaign.runs for campaign in look.campaigns if campaign.runs is not None]
        total = sum(counts) if counts and len(counts) == len(look.campaigns) else None
        seconds = [row.finished - row.started for row in made]
        latest = max((intent.started for intent in look.running), default=now)
        # Between two attempts of a training no file says when the training began.
        began = min([c.started for c in look.campaigns] or [i.started for i in look.running], default=self._began)
        self._began = began
        return Scene(
            began=now if began is None else began,
            squares=squares_of(
                [self.matrix.cells[i] for i in ids if i in self.matrix.cells], self._verdicts(look, ids)
            ),
            currents=(*self._currents.values(), *(Current(one.doing, one.since) for one in look.steps)),
            done=len(made),
            total=total,
            ends=None if total in (None, len(made)) else expected_end(seconds, total - len(made), latest),
        )

    def _lines(self, intent: Intent) -> Iterable[Progress]:
        """Return the last progress line of each rank of a run; a program of the user's own counts as one rank."""
        folder = self.results.folder_of(intent.run_id)
        if intent.program is None:
            return last_lines(folder.work).values()
        reader = self._programs.setdefault(intent.run_id, progress_of(folder, intent.program))
        last = deque(reader.new(), maxlen=1)
        # Use the file's modification time, because the harness reads the line later than the program wrote it.
        return [line.model_copy(update={"wall": reader.changed or line.wall}) for line in last]

    def _is_of_here(self, record: Record) -> bool:
        """Return whether a process of this host made the run, or a node of the cluster that this host belongs to."""
        intent = record.intent
        if intent.scheduled:
            return not self.results.imported(intent.run_id)
        return intent.host.boot_id == boot_id()

    def _read_index(self) -> None:
        if self._finished != self._indexed:
            # The index belongs to this user on this host, while the runs may be another user's.
            with suppress(UserError):
                self._indexed, self._rows = self._finished, Index(self.results).rows()

    def _verdicts(self, look: Snapshot, cells: Collection[str]) -> list[Verdict]:
        """Return the verdicts on these cells, with the workloads and data of the campaigns and of the current runs.

        The stages of a campaign have different workloads. Between runs outside of campaigns the previous ones count.
        """
        ours = {campaign.id for campaign in look.campaigns}
        if look.running:
            self._wanted = {(family_of_intent(i), data_name(i), i.host.kind, i.executor) for i in look.running}
        wanted = self._wanted | {_question_of(row) for row in self._rows if row.campaign in ours}
        rows = [row for row in self._rows if row.cell in cells and _question_of(row) in wanted]
        return judge(rows, {}, self.matrix.verdicts, counts_of(self.results, self._rows))


def _question_of(row: Row) -> tuple[str, str, str, str]:
    return row.family, row.data, row.host_kind, row.executor


def _goes_on(intent: Intent) -> bool:
    """Return whether a run is going on; one on another host is assumed to until its time limit is well exceeded."""
    if intent.scheduled and intent.host.boot_id != boot_id():
        return time.time() < intent.started + intent.time_limit + ELSEWHERE_SECONDS
    return owner_alive(intent)


def _run_names(results: Results) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in os.scandir(results.runs) if not entry.name.startswith("."))
    except OSError:
        return frozenset()


def _readable(read: Callable[[str], T | None], run_id: str) -> T | None:
    """Return what `read` returns for a run; None if its file is damaged, which other commands report."""
    with suppress(UserError):
        return read(run_id)
    return None


def current_of(
    before: Current | None, intent: Intent, results: Results, now: float, lines: Iterable[Progress]
) -> Current:
    """Return the state of a current run after the last lines that its ranks wrote."""
    again = f" (run {intent.repeat})" if intent.repeat > 1 else ""
    on = f" on GPU {', '.join(map(str, intent.gpus))}" if intent.gpus else ""
    on += f" of {intent.scheduled.node}" if intent.scheduled and on else ""
    on += f" on {intent.scheduled.node}" if intent.scheduled and not on else ""
    label = f"{intent.cell}{again}{on}, {intent.workload}"
    current = before or Current(label, intent.started, intent.cell, intent=intent)
    folder = results.folder_of(intent.run_id)
    for line in lines:
        if current.lines.get(line.rank) != line:
            current = current.advanced(line)
    if folder.work.has_result():
        return replace(current, doing="checking the trained model", stall=None)
    if current.last is None:
        return current
    last = current.last
    return replace(current, stall=Stall(now - last.wall, last.phase, folder.stall_limit(last.phase, last.done), now))


def held_campaigns(results: Results, locked: Set[int]) -> Iterator[HeldCampaign]:
    """Yield the campaigns whose file a process of this host has locked."""
    for file in sorted((results.folder / "campaigns").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if _is_in(locked, file):
                content = parse_campaign(read_regular(file))
                cells = tuple(run["cell"] for run in content["runs"])
                runs = None if content.get("goal") else len(cells)
                yield HeldCampaign(file.stem, tuple(dict.fromkeys(cells)), content["started"], runs)


def _is_in(inodes: Set[int], file: Path) -> bool:
    try:
        return file.stat().st_ino in inodes
    except FileNotFoundError:
        return False


def locked_inodes() -> frozenset[int]:
    """Return the inodes of locked files, read from the kernel's table: trying a lock would briefly block others.

    A line is `1: FLOCK  ADVISORY  WRITE 18353 fe:00:2859149 0 EOF`: process, device and inode.
    """
    try:
        rows = [line.split() for line in LOCKS.read_text(encoding="ascii").splitlines()]
    except OSError:
        return frozenset()
    places = (row[row.index("WRITE") + 2] for row in rows if "WRITE" in row)
    return frozenset(int(place.rpartition(":")[2]) for place in places)


def describe(look: Snapshot, scene: Scene, now: float) -> dict[str, Any]:
    """Return a snapshot as plain values."""
    runs = []
    for current in scene.currents:
        intent, line = current.intent, current.last
        if intent is None:
            continue
        runs.append(
            {
                "run": intent.run_id,
                "cell": intent.cell,
                "campaign": intent.campaign,
                "workload": intent.workload,
                "process": intent.owner_pid,
                "gpus": intent.gpus,
                "node": intent.scheduled.node if intent.scheduled else None,
                "seconds": round(now - intent.started, 1),
                "phase": line.phase if line else None,
                "done": line.done if line else None,
                "total": line.total if line else None,
                "loss": line.loss if line and line.loss is not None and math.isfinite(line.loss) else None,
                "seconds_without_progress": round(current.stall.seconds, 1) if current.stall else None,
                "stall_limit": current.stall.limit if current.stall else None,
            }
        )
    campaigns = [
        {"campaign": one.id, "cells": one.cells, "started": one.started, "runs": one.runs} for one in look.campaigns
    ]
    squares = [asdict(square) for square in scene.squares]
    return {
        "schema": 2,
        "campaigns": campaigns,
        "trains": look.trains,
        "doing": [one.doing for one in look.steps],
        "runs": runs,
        "cells": squares,
        "runs_done": scene.done,
    }
