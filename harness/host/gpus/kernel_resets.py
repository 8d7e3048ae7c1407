"""Finds messages of the kernel log about GPUs that stopped answering."""

import math
import re
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import cache
from pathlib import Path

from harness.base.files.yaml_lines import read_yaml
from harness.host.facts import GpuFacts
from harness.host.kernel_log import is_of_process, names_as_words

SIGNATURES = Path(__file__).parents[2] / "diagnosis" / "signatures.yaml"
"""The only place with amdgpu's wordings: the rules for the kernel log whose class says `gpu: reset`."""
ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
SINCE_BOOT = re.compile(r"^\[ *(\d+\.\d+)\]")
# Two lines of one reset that follow each other, with an address or without, are at most this far apart.
SAME_RESET_SECONDS = 10.0
# What the kernel says when it begins to suspend the host, and once the host is awake again.
SUSPEND = re.compile(r"\bPM: (?:suspend|hibernation: hibernation) (entry|exit)\b")
# What amdgpu says when it restarts a GPU. It also does so whenever the host is suspended.
_RESTART = re.compile(r"\b(?:MODE\d|BACO) reset\b|\bmode1 reset$")


def reset_lines(kernel_log: Iterable[str], addresses: Collection[str]) -> list[str]:
    """Return the lines that report a reset or a timeout of the GPUs at these PCI addresses (as `0000:03:00.0`).

    A line about a restart while the host is suspended does not count, and none that names another GPU. One without an
    address counts, because older drivers leave it out, unless another GPU was reset within ten seconds of it, or of
    such lines before it: a reset may take longer.
    """
    patterns = reset_patterns()
    suspends = Suspends()
    kernel_log = (line for line in kernel_log if not suspends.restarts_gpu(line))
    told = (line.strip() for line in kernel_log if any(one.search(names_as_words(line)) for one in patterns))
    lines = [line for line in told if not is_of_process(line)]
    if not addresses:
        return lines
    wanted = {address.lower() for address in addresses}
    times_of_others = [_seconds(line) for line in lines if (named := _named(line)) and not named & wanted]

    def concerns(line: str) -> bool:
        if named := _named(line):
            return bool(named & wanted)
        at = _seconds(line)
        is_of_another = any(abs(at - other) <= SAME_RESET_SECONDS for other in times_of_others)
        if is_of_another:
            times_of_others.append(at)
        return not is_of_another

    return [line for line in lines if concerns(line)]


class Suspends:
    """Follows the lines of a kernel log, the oldest first, through suspends of the host."""

    def __init__(self) -> None:
        self._suspending = False

    def restarts_gpu(self, line: str) -> bool:
        """Process the next line; return whether it says that a GPU is restarted because the host is suspended."""
        if (found := SUSPEND.search(line)) and not is_of_process(line):
            self._suspending = found[1] == "entry"
        return self._suspending and _RESTART.search(line.rstrip()) is not None


def gpus_named(text: str, gpus: Iterable[GpuFacts]) -> set[int]:
    """Return the indexes of those of these GPUs that a text of the kernel names by their addresses."""
    addresses = {found.lower() for found in ADDRESS.findall(text)}
    return {gpu.index for gpu in gpus if gpu.address and gpu.address.lower() in addresses}


def names_another_gpu(line: str, addresses: Collection[str]) -> bool:
    """Return whether a line of the driver names GPUs, none of which is at these PCI addresses; never if none is given.

    A line about a process may contain any words.
    """
    if not addresses or "amdgpu" not in line or is_of_process(line):
        return False
    named = _named(line)
    return bool(named) and named.isdisjoint(address.lower() for address in addresses)


@cache
def reset_patterns(file: Path = SIGNATURES) -> tuple[re.Pattern[str], ...]:
    """Return patterns of messages that a ring or scheduler of a GPU does not answer, or that the GPU is reset."""
    data = read_yaml(file).data
    resets = {name for name, one in data["classes"].items() if one.get("gpu") == "reset"}
    rules = [one for one in data["signatures"] if one.get("where") == "kernel" and one["class"] in resets]
    texts = (re.escape(text) for rule in rules for text in rule.get("text", ()))
    return tuple(
        re.compile(pattern) for pattern in (*texts, *(regex for rule in rules for regex in rule.get("regex", ())))
    )


def _named(line: str) -> set[str]:
    return {address.lower() for address in ADDRESS.findall(line)}


def _seconds(line: str) -> float:
    """Return when a line was logged, in seconds of its log's clock; NaN if unknown, which is near to no other time."""
    if since_boot := SINCE_BOOT.match(line):
        return float(since_boot[1])
    try:
        return datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()
    except ValueError:
        return math.nan
