"""Run one attack: its campaign under a watchdog, and what can be seen of it from outside."""

import datetime
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.attacks.hostile.app import DONE, ESCAPES, HTML, Attack
from benchmarks.attacks.places import HONEST_CELL, HOSTILE_CELL, Place, changed, remove_tree, state_of
from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.host.engine import Engine
from harness.host.processes.run_processes import processes_of_run
from harness.matrix.stacks import ExecutorName

HANG_SECONDS = 60
# Limits for the attacked run and for the whole campaign, in seconds.
WATCHDOG_SECONDS, CAMPAIGN_SECONDS = 75, 240
MEMORY_ALLOWED = 200 << 20
POLL_SECONDS = 0.1
TRACEBACK = "Traceback (most recent call last)"
PAGES = ("report.html", "report.md", "report.xml", "report.json")


@dataclass(frozen=True)
class Row:
    """The outcome of an attack.

    `seconds`: from the intent of its run to the record.
    `memory`: the harness's peak memory, in bytes.
    `wrong`: what should not have happened; empty if all is well.
    `day`: the day of the run, as in 2026-11-24 (UTC).
    """

    attack: str
    group: str
    what: str
    executor: str
    carried_out: bool
    outcome: str
    diagnosis: str | None
    detail: str
    seconds: float
    memory: int
    writes: tuple[str, ...]
    leftovers: tuple[str, ...]
    traceback: bool
    hang: bool
    false_completed: bool
    campaign_ended: bool
    wrong: tuple[str, ...]
    day: str


@dataclass
class _Seen:
    """The watchdog's observations of a campaign."""

    output: str = ""
    memory: int = 0
    killed: bool = False
    status: int = 0
    done: bool = False


def run_attack(
    attack: Attack, executor: ExecutorName, place: Place, environments: tuple[str, str], engine: Engine | None
) -> Row:
    """Run the campaign of one attack in its place, and inspect what is left.

    `environments`: images or interpreters of the hostile app and of the honest app.
    """
    before = state_of(place.canary)
    seen = _watched(executor, place, environments)
    hostile, honest = _records(place)
    writes = tuple(f"canary/{name}" for name in changed(before, state_of(place.canary)))
    # A harness that was killed cannot clean up, so its leftovers are not counted.
    left = tuple(_leftovers(place, engine))
    leftovers = () if seen.killed else left
    carried_out = seen.done or _was_done(place)
    started = _started(place)
    seconds = (hostile.finished - hostile.intent.started) if hostile else (time.time() - started if started else 0.0)
    false_completed = hostile is not None and hostile.outcome == "completed" and attack.may_complete is None
    ended = honest is None or honest.outcome != "completed"
    hang = seen.killed or seconds > HANG_SECONDS
    said = hostile.model_dump_json() if hostile else ""
    unsaid = [left for left in leftovers if left.rpartition(" ")[2] not in said]
    traceback = TRACEBACK in seen.output
    wrong = [
        *(["writes outside work/: " + ", ".join(writes)] if writes else []),
        *([f"no end after {seconds:.0f} s: killed"] if seen.killed else []),
        *([f"took {seconds:.0f} s"] if hang and not seen.killed else []),
        *([f"traceback: {_last(seen.output)}"] if traceback else []),
        *(["completed, though it is not true"] if false_completed else []),
        *([f"the honest run: {_words(honest)}"] if ended else []),
        *([f"left, unsaid: {', '.join(unsaid)}"] if unsaid else []),
        *(["no record"] if hostile is None else []),
        *([f"{seen.memory / 1e6:.0f} MB of memory"] if seen.memory > MEMORY_ALLOWED else []),
        *_wrong_diagnosis(attack, hostile),
        *_raw(attack, place, seen.output),
        *([] if carried_out else ["the attack was not carried out"]),
    ]
    return Row(
        attack=attack.name,
        group=attack.group,
        what=attack.what,
        executor=executor,
        carried_out=carried_out,
        outcome=hostile.outcome if hostile else "no record",
        diagnosis=hostile.diagnosis if hostile else None,
        # The path of this checkout does not belong in the page.
        detail=(hostile.detail if hostile else _last(seen.output)).replace(f"{CHECKOUT}/", "")[:300],
        seconds=seconds,
        memory=seen.memory,
        writes=writes,
        leftovers=leftovers,
        traceback=traceback,
        hang=hang,
        false_completed=false_completed,
        campaign_ended=ended,
        wrong=tuple(wrong),
        day=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _watched(executor: ExecutorName, place: Place, environments: tuple[str, str]) -> _Seen:
    """Run the campaign; kill it if it takes too long."""
    matrix = ["--matrix", str(place.matrix), "--results", str(place.results.folder)]
    words = [*matrix, "run", HOSTILE_CELL, HONEST_CELL, "--executor", executor, *place.data_options(executor)]
    command = [sys.executable, "-m", "benchmarks.attacks.campaign", *environments, *words]
    seen = _Seen()
    began = time.monotonic()
    log = place.folder / "terminal.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                seen.memory = max(seen.memory, _high_water(process.pid))
                seen.done = seen.done or _was_done(place)
                if _is_late(place) or time.monotonic() - began > CAMPAIGN_SECONDS:
                    process.kill()
                    seen.killed = True
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
    seen.status = process.returncode
    seen.output = log.read_text(encoding="utf-8", errors="replace")
    return seen


def _high_water(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def _hostile_folders(place: Place) -> list[Path]:
    runs = place.results.runs
    return [folder for folder in runs.glob(f"*{HOSTILE_CELL}*") if not folder.is_symlink()] if runs.is_dir() else []


def _was_done(place: Place) -> bool:
    if place.tether.read_text(encoding="utf-8") == DONE:
        return True
    for folder in (*_hostile_folders(place), *place.results.runs.glob(".moved")):
        with suppress(OSError):
            if any((folder / part / DONE).exists() for part in ("", "work", "moved", "scratch/moved")):
                return True
            log = folder / "log.txt"
            if log.is_file() and f"[{DONE}]".encode() in _ends(log):
                return True
    return False


def _ends(file: Path, size: int = 1 << 16) -> bytes:
    with file.open("rb") as stream:
        head = stream.read(size)
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - size))
        return head + stream.read()


def _records(place: Place) -> tuple[Record | None, Record | None]:
    """Return the records of the hostile run and of the honest run."""
    found: dict[str, Record] = {}
    for run_id in place.results.finished() if place.results.runs.is_dir() else ():
        with suppress(UserError, OSError, RecursionError):
            if record := place.results.record(run_id):
                found[record.intent.cell] = record
    return found.get(HOSTILE_CELL), found.get(HONEST_CELL)


def _started(place: Place) -> float | None:
    for folder in _hostile_folders(place):
        with suppress(OSError, ValueError):
            return float(json.loads((folder / RunFolder.INTENT).read_text(encoding="utf-8"))["started"])
    return None


def _is_late(place: Place) -> bool:
    """Return whether the attacked run should have had its record long ago."""
    if any(place.results.runs.glob(f"*{HONEST_CELL}*")):
        return False
    started = _started(place)
    return started is not None and time.time() - started > WATCHDOG_SECONDS


def _leftovers(place: Place, engine: Engine | None) -> Iterator[str]:
    """Yield each process, container or temporary folder that is left, ending with its number or name, and end it."""
    tether = place.tether.stat()
    marked = {process.pid for folder in _hostile_folders(place) for process in processes_of_run(folder)}
    for process in psutil.process_iter():
        if process.pid in marked or _holds(process.pid, (tether.st_dev, tether.st_ino)):
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield f"process {process.pid}"
                    process.kill()
    if engine:
        for container in engine.client.api.containers(all=True):
            if any(str(mount.get("Source", "")).startswith(str(place.folder)) for mount in container["Mounts"]):
                yield f"container {container['Id'][:12]}"
                engine.client.api.remove_container(container["Id"], force=True)
    for folder in _hostile_folders(place):
        temporary = RunFolder(folder).temporary
        if temporary.exists():
            yield f"folder {temporary}"
            remove_tree(temporary)


def _holds(pid: int, file: tuple[int, int]) -> bool:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                seen = descriptor.stat()
                if (seen.st_dev, seen.st_ino) == file:
                    return True
    return False


def _wrong_diagnosis(attack: Attack, record: Record | None) -> Iterator[str]:
    if attack.diagnoses and record and record.diagnosis not in attack.diagnoses:
        yield f"diagnosis {record.diagnosis}, should be {' or '.join(attack.diagnoses)}"


def _raw(attack: Attack, place: Place, output: str) -> Iterator[str]:
    """Yield the places where the app's text appears unescaped."""
    texts = {"the terminal": output}
    if attack.shown:
        for folder in _hostile_folders(place):
            words = ["--matrix", str(place.matrix), "--results", str(place.results.folder)]
            for command in (["explain", folder.name], ["status", HOSTILE_CELL], ["report"]):
                matrix = [str(CHECKOUT / ".venv" / "bin" / "matrix"), *words, *command]
                done = subprocess.run(matrix, capture_output=True, text=True, errors="replace", check=False, timeout=60)
                texts[f"matrix {command[0]}"] = done.stdout + done.stderr
                if TRACEBACK in done.stderr:
                    yield f"traceback of matrix {command[0]}: {_last(done.stderr)}"
    pages = {name: place.results.folder / name for name in PAGES}
    texts |= {
        name: file.read_text(encoding="utf-8", errors="replace") for name, file in pages.items() if file.is_file()
    }
    for name, text in texts.items():
        if ESCAPES.partition("planted")[0] in text:
            yield f"terminal escapes in {name}"
        if HTML in text and name in PAGES[:3]:
            yield f"HTML in {name}"
    if (junit := pages["report.xml"]).is_file():
        try:
            ET.parse(junit)
        except ET.ParseError as error:
            yield f"report.xml is no XML: {error}"


def _words(record: Record | None) -> str:
    return f"{record.outcome} ({record.diagnosis}): {record.detail[:120]}" if record else "was not run"


def _last(output: str) -> str:
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
