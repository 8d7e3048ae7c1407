"""The log of the health of this machine's GPUs: `results/health/MACHINE.jsonl`, one line for each step."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.base.files.json_lines import LARGEST_END, append_line, read_json_lines
from harness.base.files.storage import open_regular
from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.shared_health import share_step, shared_steps
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.gpus.kernel_resets import gpus_named

FOLDER = "health"
LOCK_HELD_DETAIL = "a process that cannot be killed holds its lock"
"""Detail of a step that says nothing about the GPU itself, but that no harness can lock it."""
BAD = re.compile(rb'"good": *false')


def health_file(results: Results, machine: str) -> Path:
    """Return the health log of a machine's GPUs."""
    return results.folder / FOLDER / f"{machine}.jsonl"


def append_steps(results: Results, steps: Iterable[HealthStep]) -> None:
    """Add lines, durably. Several harnesses may write at once, and one may have died in the middle of a line.

    The finding of a probe is also shared with the other harnesses of this user.

    Raises:
        UserError: when the results folder cannot be written.
    """
    for step in steps:
        append_line(health_file(results, step.machine), step)
        share_step(step)


def read_steps(results: Results, machine: str | None = None) -> Iterator[HealthStep]:
    """Yield every step of a machine, or of all machines, in the order they were written; damaged lines are skipped."""
    for file in sorted((results.folder / FOLDER).glob(f"{machine or '*'}.jsonl")):
        with contextlib.suppress(OSError):
            yield from read_json_lines(file, HealthStep)


def machines_with_bad_signs(results: Results) -> frozenset[str]:
    """Return the machines whose log has a bad step. Searching the text is much quicker than parsing all steps."""
    found = set()
    for file in (results.folder / FOLDER).glob("*.jsonl"):
        with contextlib.suppress(OSError), open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            # No more is read of the steps themselves.
            stream.seek(max(0, size - LARGEST_END))
            if BAD.search(stream.read(min(size, LARGEST_END))):
                found.add(file.stem)
    return frozenset(found)


def unhealthy_gpus(results: Results, host: HostFacts) -> dict[int, str]:
    """Return the GPUs of this machine that should take no more runs, by index, with the reason.

    A GPU is unhealthy if the last conclusive probe of it since the boot was bad, whichever harness of this user made
    it.
    """
    last = {step.gpu: step for step in _probes(results, host) if step.good is not None}
    # The steps of simulated hosts are not shared, because many of them may exist at once.
    told = [] if host.simulated else list(shared_steps(host.machine, host.boot_id))
    for gpu, step in {step.gpu: step for step in told}.items():
        # Lines are in the order of events, also where the clock was set back.
        if gpu not in last or last[gpu] in told or step.at > last[gpu].at:
            last[gpu] = step
    return {gpu: step.detail for gpu, step in last.items() if gpu is not None and not step.good}


def last_steps(results: Results, host: HostFacts) -> dict[int, HealthStep]:
    """Return the last step of each GPU of this machine since the boot, by index."""
    steps = read_steps(results, host.machine)
    return {step.gpu: step for step in steps if step.gpu is not None and step.boot_id == host.boot_id}


def resets_of_gpus(results: Results, host: HostFacts) -> Counter[int]:
    """Return after how many runs since the boot the kernel log named each GPU of this machine as reset, by index."""
    bad = (one for one in read_steps(results, host.machine) if one.check == "kernel-log" and one.good is False)
    since_boot = (step for step in bad if step.boot_id == host.boot_id)
    return Counter(gpu for step in since_boot for gpu in gpus_named(step.detail, host.gpus))


def probed_gpus(results: Results, host: HostFacts) -> frozenset[int]:
    """Return the GPUs on which a probe has passed since the boot, and since the last run on them began."""
    last = last_steps(results, host)
    return frozenset(gpu for gpu, step in last.items() if step.check == "probe" and step.good)


def proven_gpus(results: Results, host: HostFacts, environment: str | None = None) -> frozenset[int]:
    """Return the GPUs on which `environment` passed a probe since the boot, or on which any did, if it is None.

    A later failure there is not the environment's own fault; if any environment passed, it is not the host's.
    """
    passed = [step for step in _probes(results, host) if step.good and environment in (None, step.environment)]
    return frozenset(step.gpu for step in passed if step.gpu is not None)


def _probes(results: Results, host: HostFacts) -> list[HealthStep]:
    steps = read_steps(results, host.machine)
    return [step for step in steps if step.check == "probe" and step.boot_id == host.boot_id]
