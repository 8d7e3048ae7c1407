"""Explains why a run failed from its files, or from any log."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from harness.base.errors import UserError
from harness.base.json_bounds import load_json
from harness.base.storage import open_regular
from harness.diagnosis.judge import ASK_THE_KERNEL, END_LINES, Facts, cut, diagnose, stopped
from harness.diagnosis.lines import Line, WithEnd, as_lines, read_lines
from harness.diagnosis.scan import Found, OfRun, anybodys, scan
from harness.diagnosis.sieve import worth_reading
from harness.diagnosis.stalled_at import stuck_at
from harness.environments.executors.job import Exit
from harness.evidence.outcome.decide import SHELL_SIGNALS, Outcome
from harness.evidence.progress import last_lines, last_phase
from harness.evidence.run_files import EvidenceLine, Explanation
from harness.evidence.run_folder import RunFolder
from harness.host.facts import HostFacts
from harness.matrix.cells import Preset
from harness.matrix.wheels import supported_targets

LAST_BYTES = 1 << 16
KILLED = 9

_PYTHON = re.compile(r"python|vpoc|pt_")
# dump_oom_summary of the kernel's mm/oom_kill.c, from Linux 5.0 on.
_KILLED_IN = re.compile(r"oom-kill:constraint=.*task_memcg=([^,]*),task=.*,pid=(\d+)")


def explain_run(
    folder: RunFolder,
    outcome: Outcome,
    exits: Mapping[str, Exit],
    host: HostFacts,
    rocm: str | None,
    torch: str | None,
    presets: Collection[Preset] = (),
    *,
    own_program: bool = False,
) -> Explanation:
    """Explain why a run did not complete, from its folder. Unreadable files are left out; the class may be `unknown`.

    `presets` are those that may be named as remedies (empty: all that signatures name), except those already in effect.
    `own_program`: the user's own ran in place of the app.
    """
    refused = (
        scan(as_lines([outcome.detail], RunFolder.RECORD)) if outcome.name == "interrupted" and not exits else Found()
    )
    if refused.fatal:
        # Nothing was started: the engine's message is the only evidence.
        return diagnose(refused, Found(), Facts(), _usable(presets, folder))
    # If the harness stopped the run, the kill was its own.
    alone = outcome.name == "failed" and outcome.diagnosis not in ("time-limit", "disk-limit")
    killed = alone and any(_was_killed(exit_) for exit_ in exits.values())
    of_run = _of_run(_pids(folder), _pids_of_others(folder), killed=killed)
    log = _scan_file(folder, RunFolder.LOG, rocm, torch)
    kernel = _scan_file(folder, RunFolder.KERNEL_LOG, rocm, torch, of_run)
    stack = stuck_at(folder, last_phase(folder.work)) if outcome.name == "hung" else None
    facts = Facts(outcome, exits, stack, tuple(_memory_limit(folder)), own_program=own_program)
    explanation = diagnose(log, kernel, facts, _usable(presets, folder))
    without = sorted({gpu.gfx for gpu in host.gpus} - supported_targets())
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
    """Explain the failure in a log in memory. `kernel` are lines of the kernel log of that time."""
    found = scan(as_lines(lines, name), rocm=rocm, torch=torch)
    return diagnose(found, scan(as_lines(kernel, "kernel log"), ("kernel",)), Facts(), presets)


def explain_files(
    log: tuple[BinaryIO, str] | None,
    kernel: tuple[BinaryIO, str] | None = None,
    rocm: str | None = None,
    torch: str | None = None,
    presets: Collection[str] | None = None,
) -> Explanation:
    """Explain the failure in open files of any size, with their names. Of an unknown failure show the last line.

    A log that names no failure and ends in the middle of the work is of the class `stopped`.
    """
    read = WithEnd(log[0]) if log else None
    found = scan(read_lines(read, log[1], worth_reading()), rocm=rocm, torch=torch) if log and read else Found()
    seen = scan(read_lines(*kernel, worth_reading(("kernel",))), ("kernel",)) if kernel else Found()
    explanation = diagnose(found, seen, Facts(), presets)
    if explanation.rule or log is None or read is None:
        return explanation
    if read.is_empty:
        return explanation.model_copy(update={"cause": "the log is empty"})
    if of_end := stopped(read.last_lines(log[1], END_LINES)):
        return of_end
    last = read.last_line(log[1])
    shown = (EvidenceLine(file=last.file, line=last.number, text=cut(last.text)),) if last else ()
    remedy = explanation.remedy if kernel else ASK_THE_KERNEL
    return explanation.model_copy(update={"lines": shown, "remedy": remedy})


def _scan_file(folder: RunFolder, name: str, rocm: str | None, torch: str | None, of_run: OfRun | None = None) -> Found:
    """Scan a file of the run; with `of_run` it is a kernel log."""
    try:
        with open_regular(folder.named(name)) as stream:
            if of_run is None:
                return scan(read_lines(stream, name, worth_reading()), rocm=rocm, torch=torch, of_run=anybodys)
            lines = read_lines(stream, name, worth_reading(("kernel",)))
            return scan(lines, ("kernel",), rocm, torch, of_run)
    except OSError:
        return Found()


def _of_run(pids: frozenset[int], others: frozenset[int], *, killed: bool) -> OfRun:
    """Return a filter for processes of the run by pid; a process that was `killed` may be missing among the `pids`."""

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


def _pids(folder: RunFolder) -> frozenset[int]:
    reported = (line.pid for line in last_lines(folder.work).values())
    seen = re.findall(r"^\s*(\d+)\b", _text(folder, RunFolder.PROCESSES), re.MULTILINE)
    return frozenset([*reported, *map(int, seen)])


def _pids_of_others(folder: RunFolder) -> frozenset[int]:
    """Return the pids that the kernel killed in another container than the run's, or in none.

    Containers have separate pid namespaces, so another run may have a process with the same pid.
    """
    try:
        container = str(load_json(_text(folder, RunFolder.INSPECTED))["Id"])
    except (ValueError, TypeError, KeyError):
        return frozenset()
    killed = _KILLED_IN.findall(_text(folder, RunFolder.KERNEL_LOG))
    return frozenset(int(pid) for group, pid in killed if container not in group)


def _memory_limit(folder: RunFolder) -> Iterator[Line]:
    """Yield the lines by which engine and cgroup report that the container met its memory limit."""
    if not folder.named(RunFolder.INSPECTED).exists():
        return
    for name, key, happened in (
        (RunFolder.INSPECTED, "OOMKilled", _was_oom_killed),
        (RunFolder.MEMORY_GROUP, "oom_kill", _counts_kills),
    ):
        text = _text(folder, name)
        try:
            was_met = happened(load_json(text))
        except (ValueError, TypeError, AttributeError):
            continue
        if was_met:
            # The counters of the end come last.
            yield [Line(name, number, line) for number, line in enumerate(text.split("\n"), 1) if key in line][-1]


def _was_oom_killed(inspected: Any) -> bool:
    return bool(inspected.get("State", {}).get("OOMKilled"))


def _counts_kills(group: Any) -> bool:
    """Return whether the counter of kills has risen during the run."""
    first = group["first"] if group.get("first") else {}
    kills = {key: value for key, value in group.get("last", {}).items() if key.endswith("oom_kill")}
    return any(value > first.get(key, 0) for key, value in kills.items())


def _usable(presets: Collection[Preset], folder: RunFolder) -> Collection[str] | None:
    """Return the names of presets that set a variable differently from the run."""
    if not presets:
        return None
    try:
        intent = folder.read_intent()
    except UserError:
        intent = None
    had = [set(of_phase.items()) for of_phase in intent.variables.values()] if intent else []
    return {
        preset.name
        for preset in presets
        if not (had and all(set(preset.variables.items()) <= items for items in had) and preset.variables)
    }


def _text(folder: RunFolder, name: str) -> str:
    """Return the end of a file; an empty string if it cannot be read."""
    file = folder.named(name)
    try:
        with open_regular(file) as stream:
            stream.seek(max(file.stat().st_size - LAST_BYTES, 0))
            return stream.read(LAST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
