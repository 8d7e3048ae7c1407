"""Explains why a run failed, from its folder: when it ends, or later from its record."""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, cast

from harness.base.files.json_bounds import load_json
from harness.base.files.storage import open_regular
from harness.diagnosis.device import explanation_in_record, may_use_a_gpu, on_its_device
from harness.diagnosis.judge import Facts, diagnose
from harness.diagnosis.lines import Line, as_lines, read_lines
from harness.diagnosis.matcher import OfRun, any_process
from harness.diagnosis.scan import ScanResult, scan, sieve_of
from harness.diagnosis.stalled_at import stuck_at
from harness.environments.executors.job import SHELL_SIGNALS, Exit
from harness.evidence.app_reports.progress import last_lines, last_phase
from harness.evidence.files.run_files import Explanation, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.outcome.decide import Outcome
from harness.host.gpus.kernel_resets import names_another_gpu, reset_lines
from harness.matrix.wheels import supported_targets

if TYPE_CHECKING:
    from harness.diagnosis.rules import Where
    from harness.evidence.outcome.diagnoses import Diagnosis
    from harness.matrix.cells import Preset

LAST_BYTES = 1 << 16
# Longest scan of one file, in seconds: each line may be one that must be compared with many rules.
LONGEST_SECONDS = 20.0
# Largest log that is read, in bytes: those of a run have 20 MB, but another user may have put any other in their place.
LARGEST_LOG = 1 << 30
KILLED = 9
LONGEST_PID, LONGEST_OF_KERNEL = 9, 2048
"""Digits of a pid, and characters of a line of the kernel log: an imported run may contain longer ones."""

_PYTHON = re.compile(r"python|vpoc|pt_")
# A control group that has no container's id in its name.
_IN_NO_CONTAINER = re.compile(r"^(?!.*[0-9a-f]{64})")
# dump_oom_summary of the kernel's mm/oom_kill.c, from Linux 5.0 on.
_KILLED_IN = re.compile(r"oom-kill:constraint=.*task_memcg=([^,]*),task=.*,pid=(\d{1,9})\b")


def explain_run(
    folder: RunFolder, intent: Intent, outcome: Outcome, exits: Mapping[str, Exit], presets: "Collection[Preset]" = ()
) -> Explanation:
    """Explain why a run did not complete, from its folder. Unreadable files are ignored; the class may be `unknown`.

    `presets`: those that may be named as remedies (empty: all that signatures name), except those already in effect.
    """
    return on_its_device(_explanation(folder, intent, outcome, exits, presets), intent)


def explain_record(folder: RunFolder, record: Record, presets: "Collection[Preset]" = ()) -> Explanation:
    """Explain a recorded run by the current signatures; if none matches, return the explanation in its record."""
    told = folder.for_display(record)
    # A record of another version may have a diagnosis that this one does not know.
    outcome = Outcome(record.outcome, cast("Diagnosis | None", told.diagnosis), told.detail)
    found = explain_run(folder, record.intent, outcome, dict(_exits(record)), presets)
    return found if found.rule else explanation_in_record(record, mine=folder.is_mine) or found


def _explanation(
    folder: RunFolder,
    intent: Intent,
    outcome: Outcome,
    exits: Mapping[str, Exit],
    presets: "Collection[Preset]",
) -> Explanation:
    refused = (
        scan(as_lines([outcome.detail], RunFolder.RECORD))
        if outcome.name == "interrupted" and not exits
        else ScanResult()
    )
    if refused.fatal:
        # Nothing was started: the engine's message is the only evidence.
        return diagnose(refused, ScanResult(), Facts(), _usable(presets, intent))
    # Only for a failed run: a stopped run was killed by the harness, and one that met a limit is explained by that.
    killed = outcome.name == "failed" and any(_was_killed(exit_) for exit_ in exits.values())
    in_container = intent.executor != "process"
    pids = _pids(folder, in_container=in_container)
    of_run = _of_run(pids, _pids_of_others(folder, intent), killed=killed, in_container=in_container)
    log = _scan_file(folder, RunFolder.LOG, intent)
    kernel = _scan_file(folder, RunFolder.KERNEL_LOG, intent, of_run)
    if not may_use_a_gpu(intent):
        kernel = kernel.without_gpus
    stack = stuck_at(folder, last_phase(folder.work)) if outcome.name == "hung" else None
    facts = Facts(outcome, exits, stack, tuple(_memory_limit(folder)), own_program=intent.program is not None)
    explanation = diagnose(log, kernel, facts, _usable(presets, intent))
    if not (log.whole and kernel.whole):
        seen = f"{explanation.cause} (the logs take too long to read: parts of them were skipped)"
        explanation = explanation.model_copy(update={"cause": seen})
    without = sorted({gpu.gfx for gpu in intent.host.gpus} - supported_targets())
    if explanation.class_ == "missing-arch" and without and may_use_a_gpu(intent):
        seen = f"{explanation.cause}; this host shows {', '.join(without)}, for which no wheel has code"
        explanation = explanation.model_copy(update={"cause": seen})
    return explanation


def _exits(record: Record) -> Iterator[tuple[str, Exit]]:
    """Yield how each process ended; words of another host's record that cannot be parsed are skipped."""
    for phase, words in record.exit.items():
        with suppress(ValueError):
            yield phase, Exit.parse(words)


def _scan_file(folder: RunFolder, name: str, intent: Intent, of_run: OfRun | None = None) -> ScanResult:
    """Scan a file of the run; with `of_run` a kernel log. After LONGEST_SECONDS all but the last block is skipped."""
    where: tuple[Where, ...] = ("log", "build") if of_run is None else ("kernel",)
    until = time.monotonic() + LONGEST_SECONDS
    try:
        with open_regular(folder.named(name)) as stream:
            size = folder.named(name).stat().st_size
            if size > LARGEST_LOG:
                return ScanResult(whole=False)
            read = read_lines(stream, name, sieve_of(where))
            lines: Iterable[Line] = (line for line in read if time.monotonic() < until or stream.tell() >= size)
            cards: frozenset[str] = frozenset()
            if of_run is not None:
                used = _gpus_used(intent)
                cards = _without_function(used) or _cards(folder)
                lines = filterfalse(_is_of_another_gpu(folder, used), lines)
            found = scan(lines, where, intent.rocm, intent.torch, of_run or any_process, cards)
            return replace(found, whole=time.monotonic() < until)
    except OSError:
        return ScanResult()


def _of_run(pids: frozenset[int], others: frozenset[int], *, killed: bool, in_container: bool) -> OfRun:
    """Return a filter for processes of the run by pid; a process that was `killed` may be missing among the `pids`.

    Of a container's processes no pid may be known, and its own processes are Python.
    """

    def belongs(found: re.Match[str]) -> bool:
        groups = found.groupdict()
        if groups.get("pid") is None:
            return True
        if len(groups["pid"]) > LONGEST_PID:
            return False
        pid = int(groups["pid"])
        if pid in others:
            return False
        is_python = _PYTHON.match(groups.get("name") or "") is not None
        if not pids:
            return is_python or groups.get("name") is None or not in_container
        return pid in pids or (killed and is_python)

    return belongs


def _was_killed(exit_: Exit) -> bool:
    return exit_.out_of_memory or exit_.code in (-KILLED, SHELL_SIGNALS + KILLED)


def _pids(folder: RunFolder, *, in_container: bool) -> frozenset[int]:
    """Return the pids of a run as the kernel log has them; in a container the app reports other ones."""
    reported: Iterable[int] = () if in_container else (line.pid for line in last_lines(folder.work).values())
    seen = re.findall(rf"^[ \t]*(\d{{1,{LONGEST_PID}}})\b", _text(folder, RunFolder.PROCESSES), re.MULTILINE)
    return frozenset([*reported, *map(int, seen)])


def _gpus_used(intent: Intent) -> frozenset[str]:
    """Return the PCI addresses of the GPUs that a run used; empty where that of one is not known."""
    known = {gpu.address for gpu in intent.host.gpus if gpu.index in intent.gpus and gpu.address}
    return frozenset(known) if len(known) == len(intent.gpus) else frozenset()


def _is_of_another_gpu(folder: RunFolder, used: Collection[str]) -> Callable[[Line], bool]:
    """Return a test whether a line of the kernel log is about GPUs that the run did not use, as its verdict takes it.

    `used`: the PCI addresses of those that it used; if empty, no line is.
    """
    lines = [line[:LONGEST_OF_KERNEL] for line in _text(folder, RunFolder.KERNEL_LOG).splitlines()]
    resets = set(reset_lines(lines, ())).difference(reset_lines(lines, used))
    return lambda line: line.text.strip() in resets or names_another_gpu(line.text, used)


def _cards(folder: RunFolder) -> frozenset[str]:
    """Return the PCI addresses of the host's GPUs, without the function; empty where they are not known."""
    try:
        return _without_function(str(gpu["card"]) for gpu in load_json(_text(folder, RunFolder.GPUS)))
    except (ValueError, TypeError, KeyError, RecursionError):
        return frozenset()


def _without_function(addresses: Iterable[str]) -> frozenset[str]:
    return frozenset(address.rpartition(".")[0] for address in addresses)


def _pids_of_others(folder: RunFolder, intent: Intent) -> frozenset[int]:
    """Return the pids that the kernel killed in another container than the run's, or in none.

    Containers have separate pid namespaces, so another run may have a process with the same pid. A run of processes has
    no container, and of a short one no pid may be known.
    """
    try:
        own = re.compile(re.escape(str(load_json(_text(folder, RunFolder.INSPECTED))["Id"])))
    except (ValueError, TypeError, KeyError):
        if intent.executor != "process":
            return frozenset()
        own = _IN_NO_CONTAINER
    lines = _text(folder, RunFolder.KERNEL_LOG).splitlines()
    killed = (found for line in lines if (found := _KILLED_IN.search(line[:LONGEST_OF_KERNEL])))
    return frozenset(int(found[2]) for found in killed if not own.search(found[1]))


def _memory_limit(folder: RunFolder) -> Iterator[Line]:
    """Yield the lines in which the engine and the control group report that the container met its memory limit."""
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
            # The counters at the end of the run come last.
            named = [Line(name, number, line) for number, line in enumerate(text.split("\n"), 1) if key in line]
            # There is no such line if another host wrote the key with escapes.
            yield from named[-1:]


def _was_oom_killed(inspected: Any) -> bool:
    return bool(inspected.get("State", {}).get("OOMKilled"))


def _counts_kills(group: Any) -> bool:
    """Return whether the counter of kills has risen during the run."""
    first = group["first"] if group.get("first") else {}
    kills = {key: value for key, value in group.get("last", {}).items() if key.endswith("oom_kill")}
    return any(value > first.get(key, 0) for key, value in kills.items())


def _usable(presets: "Collection[Preset]", intent: Intent) -> Collection[str] | None:
    """Return the names of presets that set a variable differently from the run."""
    if not presets:
        return None
    had = [set(of_phase.items()) for of_phase in intent.variables.values()]
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
