"""The log of the health of this machine's GPUs: `results/health/MACHINE.jsonl`, a line for each step."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.storage import locked
from harness.evidence.records import Results
from harness.evidence.run_files import HealthStep
from harness.evidence.shared_health import share_step, shared_steps
from harness.host.facts import HostFacts

FOLDER = "health"
LOCKED = "a process that cannot be killed holds its lock"
"""Detail of a step that finds nothing of a GPU itself, but that nobody can have it."""
BAD = re.compile(rb'"good": *false')


def health_file(results: Results, machine: str) -> Path:
    """Return the file of the health of a machine's GPUs."""
    return results.folder / FOLDER / f"{machine}.jsonl"


def append_steps(results: Results, steps: Iterable[HealthStep]) -> None:
    """Add lines, durably; several harnesses may do so at once, and one may have died in the middle of a line.

    What a probe found of a GPU is told to the other harnesses of this user, too.

    Raises:
        UserError: when the results folder cannot be written.
    """
    for step in steps:
        file = health_file(results, step.machine)
        line = step.model_dump_json(by_alias=True).encode() + b"\n"
        try:
            with locked(file.with_suffix(".lock")), file.open("a+b") as stream:
                if stream.tell() and not _ends_whole(stream.fileno(), stream.tell()):
                    line = b"\n" + line
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {error.strerror}; free space or fix its rights") from None
        share_step(step)


def read_steps(results: Results, machine: str | None = None) -> Iterator[HealthStep]:
    """Every step of a machine, or of all, in the order they were written; lines that are damaged are passed over."""
    for file in sorted((results.folder / FOLDER).glob(f"{machine or '*'}.jsonl")):
        with contextlib.suppress(OSError), file.open("rb") as stream:
            for line in stream:
                with contextlib.suppress(ValidationError):
                    yield HealthStep.parse(line)


def machines_with_bad_signs(results: Results) -> frozenset[str]:
    """Return the machines whose GPUs had a bad sign. To search the text is much quicker than to read all steps."""
    found = set()
    for file in (results.folder / FOLDER).glob("*.jsonl"):
        with contextlib.suppress(OSError):
            if BAD.search(file.read_bytes()):
                found.add(file.stem)
    return frozenset(found)


def unhealthy_gpus(results: Results, host: HostFacts) -> dict[int, str]:
    """The GPUs of this machine that should take no more runs, by index, and why.

    A GPU is unhealthy when the last probe of it since the boot that allows a conclusion was bad, by whichever harness
    of this user it was made.
    """
    last = {step.gpu: step for step in _probes(results, host) if step.good is not None}
    # Of simulated hosts there may be any number at once.
    for step in () if host.simulated else shared_steps(host.machine, host.boot_id):
        if step.gpu not in last or step.at > last[step.gpu].at:
            last[step.gpu] = step
    return {gpu: step.detail for gpu, step in last.items() if gpu is not None and not step.good}


def last_steps(results: Results, host: HostFacts) -> dict[int, HealthStep]:
    """Return the last step of each GPU of this machine since the boot, by index."""
    steps = read_steps(results, host.machine)
    return {step.gpu: step for step in steps if step.gpu is not None and step.boot_id == host.boot_id}


def proven_gpus(results: Results, host: HostFacts, environment: str | None = None) -> frozenset[int]:
    """The GPUs on which this environment passed a probe since the boot: what it fails at later is not its own fault.

    Without one, those on which any did: what fails there is not the host's fault.
    """
    passed = [step for step in _probes(results, host) if step.good and environment in (None, step.environment)]
    return frozenset(step.gpu for step in passed if step.gpu is not None)


def _probes(results: Results, host: HostFacts) -> list[HealthStep]:
    steps = read_steps(results, host.machine)
    return [step for step in steps if step.check == "probe" and step.boot_id == host.boot_id]


def _ends_whole(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
