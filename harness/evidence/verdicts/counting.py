"""Counts every run that was begun: as passed, as failed, or not at all, and why. Pure.

The cell under test may itself be the reason why a GPU is unhealthy, a host goes down or a terminal closes: leaving such
runs out would select for survivors. So every run that was begun counts, as in the analysis of clinical trials by
intention to treat, except these:

- runs that were interrupted while they progressed: by Ctrl-C, an orderly shutdown, the scheduler or the loss of the
  Docker engine, or because the harness was killed; runs without a GPU also by HUP or TERM;
- runs whose command the app refused before the first step, unless it accepted the same command in another run;
- runs that a person struck out by hand;
- runs with a fault injected on purpose, and rehearsals.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import Final, Literal, NamedTuple

from harness.base.text import LONGEST_QUOTE, safe_text
from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.health_log import LOCK_HELD_DETAIL, machines_with_bad_signs, read_steps
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row

CountName = Literal["passed", "failed", "not-counted"]
Gpu = tuple[str, str, int]
"""A GPU of a machine since a boot."""

# An interrupted run that had made no progress for more than this share of its stall limit may well have hung.
SHARE_OF_LIMIT: Final = 1 / 3
INTERRUPTED: Final = "interrupted"
NOT_BEGUN: Final = "not-begun"
"""Diagnosis of a run that was not begun, because a GPU of it was unhealthy or its image could not be had."""
REFUSED: Final = "refused"
"""Diagnosis, and kind of count, of a run whose command the app refused."""
NO_PROGRESS: Final = "no-progress"
"""Diagnosis of an interrupted run that may well have hung."""
_COUNTING_INTERRUPTIONS: Final[Mapping[str, str]] = {
    "hup": "HUP ended it: the GPU may have brought down the terminal or the desktop session",
    "term": "TERM ended it, and the host was not shutting down",
}
_OTHER_INTERRUPTIONS: Final[Mapping[str | None, str]] = {
    "ctrl-c": "Ctrl-C ended it while it progressed",
    "shutdown": "the host was shut down cleanly while it progressed",
    "harness": "the harness ended it on purpose while it progressed",
    "harness-killed": "its harness was killed while it progressed",
    "scheduler": "the scheduler cancelled its job while it progressed",
    "engine": "the Docker engine was gone, and its GPUs are healthy",
    None: "somebody or something ended it",
}


class RunCount(NamedTuple):
    """How one run counts.

    `why`: a line of explanation, where the outcome alone does not say it.
    `kind`: in a word or two, the reason why the run is not counted.
    `diagnosis`: of a failure, where the record has none.
    `gpu_fault`: whether a GPU of the run was reset, or was unhealthy afterwards.
    """

    counts_as: CountName
    why: str = ""
    kind: str = ""
    diagnosis: str | None = None
    gpu_fault: bool = False

    @property
    def counts(self) -> bool:
        """True if the run counts at all."""
        return self.counts_as != "not-counted"

    @property
    def hours_count(self) -> bool:
        """True if the run does not count, but the time that it trained does."""
        return self.kind == INTERRUPTED


Counts = Mapping[str, RunCount]
PASSED: Final = RunCount("passed")
FAILED: Final = RunCount("failed")


def count_runs(rows: Iterable[Row], steps: Iterable[HealthStep] = ()) -> dict[str, RunCount]:
    """Return how every run counts, by its id.

    `rows`: all runs of their machines, because the last run on a GPU answers for its health.
    `steps`: the health logs of these machines.
    """
    rows = list(rows)
    faults = gpu_faults(rows, steps)
    refused = {_command(row) for row in rows if row.diagnosis == REFUSED}
    taken = {_command(row) for row in rows if row.outcome == "completed" or row.first_step} if refused else set()
    return {row.run_id: _count(row, faults.get(row.run_id), taken) for row in rows}


def _command(row: Row) -> tuple[str, str, str]:
    """Return a key that is equal for runs of the same app with the same command and data on the same machine."""
    return row.machine, row.environment_hash, row.workload_hash


def counts_of(results: Results, rows: Sequence[Row] | None = None) -> dict[str, RunCount]:
    """Return how all runs of a results folder count. `rows`: all rows of its index, if they have been read already."""
    rows = Index(results).rows() if rows is None else rows
    # Most health logs have no bad step, and reading all steps takes long. Another user may have added logs of
    # machines that ran nothing.
    machines = machines_with_bad_signs(results) & {row.machine for row in rows}
    steps = (step for machine in sorted(machines) for step in read_steps(results, machine))
    return count_runs(rows, steps)


def gpu_faults(rows: Iterable[Row], steps: Iterable[HealthStep]) -> dict[str, str]:
    """Return what was seen, by run, where a GPU was reset during a run or was first found unhealthy after it."""
    rows, steps = list(rows), list(steps)
    machines = {row.run_id: row.machine for row in rows}
    faults = {
        step.run_id: f"the kernel log shows a reset of its GPU: {_quoted(step)}"
        for step in steps
        # An imported log may name any run, also one of this host.
        if step.check == "kernel-log" and step.good is False and machines.get(step.run_id) == step.machine
    }
    probes: dict[Gpu, list[HealthStep]] = defaultdict(list)
    for step in steps:
        if step.check == "probe" and step.gpu is not None and step.detail != LOCK_HELD_DETAIL:
            probes[step.machine, step.boot_id, step.gpu].append(step)
    if not any(step.good is False for of_gpu in probes.values() for step in of_gpu):
        return faults
    runs: dict[Gpu, list[Row]] = defaultdict(list)
    for row in rows:
        # A run that was interrupted during the probe before it never used a GPU.
        never_ran = row.outcome == "interrupted" and row.seconds == 0 and row.interrupted_by != "harness-killed"
        if row.diagnosis != NOT_BEGUN and not never_ran:
            for gpu in json.loads(row.gpus):
                runs[row.machine, row.boot_id, gpu].append(row)
    for gpu, of_gpu in probes.items():
        for run_id, step in _found_unhealthy(runs.get(gpu, []), of_gpu):
            faults.setdefault(run_id, f"GPU {step.gpu} failed the next probe after it: {_quoted(step)}")
    return faults


def _quoted(step: HealthStep) -> str:
    """Return the detail of a step as a quotation, because another user or host may have written it."""
    return safe_text(step.detail, LONGEST_QUOTE)


def _found_unhealthy(runs: Iterable[Row], probes: Sequence[HealthStep]) -> Iterator[tuple[str, HealthStep]]:
    """Yield the last run on one GPU before each failed probe; of several failed probes after a run, the first.

    A probe that passes after a run clears it. `probes` are in the order in which they were made, which is right also if
    the clock was set back.
    """
    starts = {row.run_id: row.started for row in runs}
    passed = {step.run_id for step in probes if step.when == "before-run" and step.good is not False}
    unprobed = sorted((started, run) for run, started in starts.items() if run not in passed)
    answering, last = [], None
    for step in probes:
        if step.good is False:
            answering.append((_last_before(starts, unprobed, step, last), step))
        elif step.when == "before-run" and step.run_id in starts:
            last = step.run_id
        elif step.good:
            last = None
            unprobed = [(started, run) for started, run in unprobed if started > step.at]
    for run_id, of_run in groupby(answering, key=lambda pair: pair[0]):
        if run_id is not None:
            yield run_id, next(of_run)[1]


def _last_before(
    starts: Mapping[str, float], unprobed: Sequence[tuple[float, str]], step: HealthStep, last: str | None
) -> str | None:
    """Return the run that was begun last before a probe; a run is not answerable for the probe before it.

    A probe after a run is about that run. Any other probe is about `last`, the run whose own probe before it was the
    last to pass, or about a later run without such a probe: only for these the clock decides.
    """
    if step.when in ("after-completion", "after-failure") and step.run_id in starts:
        return step.run_id
    its_own = step.run_id if step.when == "before-run" else None
    by_time = next((run for started, run in reversed(unprobed) if started <= step.at and run != its_own), None)
    return max(filter(None, [by_time, last]), key=lambda run: starts[run], default=None)


def _count(row: Row, fault: str | None, taken: Set[tuple[str, str, str]]) -> RunCount:
    """Return how a run counts. `taken`: the commands with which some run completed or made its first step."""
    if row.injected_fault is not None:
        return RunCount("not-counted", "a fault was injected into it on purpose", "injected fault")
    if row.rehearsal:
        return RunCount("not-counted", "a rehearsal, in which nothing but the harness was real", "rehearsal")
    if row.struck is not None:
        return RunCount("not-counted", f"struck out by hand: {row.struck}", "struck")
    if row.diagnosis == NOT_BEGUN:
        return RunCount("not-counted", row.detail, "not begun")
    if fault is not None:
        return RunCount("failed", fault, diagnosis=row.diagnosis or "unhealthy-gpu", gpu_fault=True)
    if row.outcome == "completed":
        return PASSED
    refused = f"the {'program' if row.own_program else 'app'} refused the command"
    # The checkpoints of an earlier training are input as well: with others the same command may be right.
    if row.diagnosis == REFUSED and _command(row) in taken and not row.resumes_earlier:
        # Otherwise an app could have every failed start left out, by the way it ends.
        return RunCount("failed", f"{refused}, which it accepts in other runs: {row.detail}")
    if row.diagnosis == REFUSED:
        return RunCount("not-counted", f"{refused}: {row.detail}", REFUSED)
    if row.outcome == "interrupted":
        return _interrupted(row)
    # A power cut or a reboot by hand is not the GPU's fault.
    of_gpu = row.outcome == "host-fault" and row.diagnosis != "host-down"
    return RunCount("failed", gpu_fault=True) if of_gpu else FAILED


def _interrupted(row: Row) -> RunCount:
    ended = _COUNTING_INTERRUPTIONS.get(row.interrupted_by or "")
    if ended and row.device != "cpu":
        return RunCount("failed", ended, diagnosis="session-ended")
    if row.idle_seconds is not None and row.idle_limit and row.idle_seconds > row.idle_limit * SHARE_OF_LIMIT:
        why = f"no rank had advanced for {row.idle_seconds:.0f} s when it was ended, of {row.idle_limit:.0f} s allowed"
        return RunCount("failed", why, diagnosis=NO_PROGRESS)
    if ended:
        signal = (row.interrupted_by or "").upper()
        return RunCount("not-counted", f"{signal} ended it, and it used no GPU that could be the cause", INTERRUPTED)
    return RunCount("not-counted", _OTHER_INTERRUPTIONS.get(row.interrupted_by, ""), INTERRUPTED)
