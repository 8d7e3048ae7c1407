"""Reads what a run left behind, or any log, and says why it failed."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from harness.diagnosis.judge import Facts, cut, judge
from harness.diagnosis.lines import Line, WithEnd, as_lines, read_lines
from harness.diagnosis.scan import Found, OfRun, anybodys, scan
from harness.diagnosis.sieve import worth_reading
from harness.diagnosis.stalled_at import stuck_at
from harness.environments.executors.job import Exit
from harness.evidence.app_files import Phase, Progress
from harness.evidence.outcome import SHELL_SIGNALS, Outcome
from harness.evidence.records import INTENT, RECORD
from harness.evidence.run_files import EvidenceLine, Explanation, Intent
from harness.host.facts import HostFacts
from harness.host.fingerprint import WHEEL_TARGETS
from harness.matrix.cells import Preset

LOG = "log.txt"
KERNEL_LOG = "failure/kernel-log.txt"
CGROUP = "failure/cgroup.json"
CONTAINER = "failure/container.json"
PROCESSES = "failure/processes.txt"
LAST_BYTES = 1 << 16
KILLED = 9

_PYTHON = re.compile(r"python|vpoc|pt_")
# dump_oom_summary of the kernel's mm/oom_kill.c, from Linux 5.0 on.
_KILLED_IN = re.compile(r"oom-kill:constraint=.*task_memcg=([^,]*),task=.*,pid=(\d+)")


def explain_run(
    folder: Path,
    outcome: Outcome,
    exits: Mapping[str, Exit],
    host: HostFacts,
    rocm: str | None,
    torch: str | None,
    presets: Collection[Preset] = (),
) -> Explanation:
    """Why a run did not complete, from its folder. Class `unknown` is an answer; what cannot be read is left out.

    `presets`: those that may be named as remedies (none: all that signatures name), but for what the run had in effect.
    """
    refused = scan(as_lines([outcome.detail], RECORD)) if outcome.name == "interrupted" and not exits else Found()
    if refused.fatal:
        # Nothing was started: what the engine said is all there is.
        return judge(refused, Found(), Facts(), _usable(presets, folder))
    # A run that the harness stopped was killed by it.
    alone = outcome.name == "failed" and outcome.diagnosis != "time-limit"
    killed = alone and any(_was_killed(exit_) for exit_ in exits.values())
    of_run = _of_run(_pids(folder), _pids_of_others(folder), killed=killed)
    log = _scan_file(folder, LOG, rocm, torch)
    kernel = _scan_file(folder, KERNEL_LOG, rocm, torch, of_run)
    stack = stuck_at(folder, _last_phase(folder)) if outcome.name == "hung" else None
    facts = Facts(outcome, exits, stack, tuple(_memory_limit(folder)))
    explanation = judge(log, kernel, facts, _usable(presets, folder))
    without = sorted({gpu.gfx for gpu in host.gpus} - WHEEL_TARGETS)
    if explanation.class_ == "missing-arch" and without:
        seen = f"{explanation.cause}; this host shows {', '.join(without)}, for which no wheel has code"
        explanation = explanation.model_copy(update={"cause": seen})
    return explanation


def explain_log(
    lines: Iterable[str],
    name: str,
    kernel: Iterable[str] = (),
    rocm: str | None = None,
    torch: str | None = None,
    presets: Collection[str] | None = None,
) -> Explanation:
    """Why a log that is in memory ends as it does. `kernel`: lines of the kernel log of that time."""
    found = scan(as_lines(lines, name), rocm=rocm, torch=torch)
    return judge(found, scan(as_lines(kernel, "kernel log"), ("kernel",)), Facts(), presets)


def explain_files(
    log: tuple[BinaryIO, str] | None,
    kernel: tuple[BinaryIO, str] | None = None,
    rocm: str | None = None,
    torch: str | None = None,
    presets: Collection[str] | None = None,
) -> Explanation:
    """The same of open files with their names, of any size. Of a log that is not understood the last line is shown."""
    read = WithEnd(log[0]) if log else None
    found = scan(read_lines(read, log[1], worth_reading()), rocm=rocm, torch=torch) if log and read else Found()
    seen = scan(read_lines(*kernel, worth_reading(("kernel",))), ("kernel",)) if kernel else Found()
    explanation = judge(found, seen, Facts(), presets)
    if explanation.rule or log is None or read is None:
        return explanation
    if read.is_empty:
        return explanation.model_copy(update={"cause": "the log is empty"})
    last = read.last_line(log[1])
    shown = (EvidenceLine(file=last.file, line=last.number, text=cut(last.text)),) if last else ()
    return explanation.model_copy(update={"lines": shown})


def _scan_file(folder: Path, name: str, rocm: str | None, torch: str | None, of_run: OfRun | None = None) -> Found:
    """What a file of the run holds; with `of_run` it is a kernel log."""
    try:
        with (folder / name).open("rb") as stream:
            if of_run is None:
                return scan(read_lines(stream, name, worth_reading()), rocm=rocm, torch=torch, of_run=anybodys)
            lines = read_lines(stream, name, worth_reading(("kernel",)))
            return scan(lines, ("kernel",), rocm, torch, of_run)
    except OSError:
        return Found()


def _of_run(pids: frozenset[int], others: frozenset[int], *, killed: bool) -> OfRun:
    """Tells processes of the run from `others`, by pid; one that was killed may be missing among those known."""

    def belongs(found: re.Match[str]) -> bool:
        groups = found.groupdict()
        if groups.get("pid") is None:
            return True
        pid = int(groups["pid"])
        if pid in others:
            return False
        return not pids or pid in pids or (killed and _PYTHON.match(groups.get("name") or "") is not None)

    return belongs


def _was_killed(exit_: Exit) -> bool:
    return exit_.out_of_memory or exit_.code in (-KILLED, SHELL_SIGNALS + KILLED)


def _pids(folder: Path) -> frozenset[int]:
    told = (line.pid for path in folder.glob("progress-*.jsonl") for line in _last_progress(path))
    seen = re.findall(r"^\s*(\d+)\b", _text(folder / PROCESSES), re.MULTILINE)
    return frozenset([*told, *map(int, seen)])


def _pids_of_others(folder: Path) -> frozenset[int]:
    """Of a run in a container: what the kernel killed in another container, or in none.

    A container counts its own pids, so one of another run may be the same as one of this run.
    """
    try:
        container = str(json.loads(_text(folder / CONTAINER))["Id"])
    except (ValueError, TypeError, KeyError):
        return frozenset()
    killed = _KILLED_IN.findall(_text(folder / KERNEL_LOG))
    return frozenset(int(pid) for group, pid in killed if container not in group)


def _last_phase(folder: Path) -> Phase | None:
    """The phase of the rank that has been silent for longest."""
    last = [line for path in folder.glob("progress-*.jsonl") for line in _last_progress(path)]
    return min(last, key=lambda line: line.monotonic).phase if last else None


def _last_progress(path: Path) -> Sequence[Progress]:
    """The last line that is whole, if there is one."""
    for text in reversed(_text(path).split("\n")):
        try:
            return [Progress.parse(text)]
        except ValidationError:
            continue
    return []


def _memory_limit(folder: Path) -> Iterator[Line]:
    """What engine and cgroup say of the container's memory limit; without a container the cgroup is another's."""
    if not (folder / CONTAINER).exists():
        return
    for name, key, happened in ((CONTAINER, "OOMKilled", _was_oom_killed), (CGROUP, "oom_kill", _counts_kills)):
        text = _text(folder / name)
        try:
            told = happened(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            continue
        if told:
            # The counters of the end come last.
            yield [Line(name, number, line) for number, line in enumerate(text.split("\n"), 1) if key in line][-1]


def _was_oom_killed(inspected: Any) -> bool:
    return bool(inspected.get("State", {}).get("OOMKilled"))


def _counts_kills(group: Any) -> bool:
    """Whether the counter is higher than at first."""
    first = group["first"] if group.get("first") else {}
    kills = {key: value for key, value in group.get("last", {}).items() if key.endswith("oom_kill")}
    return any(value > first.get(key, 0) for key, value in kills.items())


def _usable(presets: Collection[Preset], folder: Path) -> Collection[str] | None:
    """The presets that set something the run did not have."""
    if not presets:
        return None
    try:
        variables = Intent.parse((folder / INTENT).read_bytes()).variables
    except (OSError, ValidationError):
        variables = {}
    had = [set(of_phase.items()) for of_phase in variables.values()]
    return {
        preset.name
        for preset in presets
        if not (had and all(set(preset.variables.items()) <= items for items in had) and preset.variables)
    }


def _text(path: Path) -> str:
    """The end of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - LAST_BYTES, 0))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
