"""Messages of the kernel log about GPUs that stopped answering."""

import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from harness.base.yaml_lines import read_yaml

SIGNATURES = Path(__file__).parents[1] / "diagnosis" / "signatures.yaml"
"""The one place for how amdgpu words it: the rules of CLASS for the kernel log. A page fault is of another class."""
CLASS = "gpu-reset"
ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)


def reset_lines(kernel_log: Iterable[str], addresses: Collection[str]) -> list[str]:
    """The lines that tell of a reset or a timeout of the GPUs at these PCI addresses (as `0000:03:00.0`).

    A line that names no address counts: older drivers leave it out. One that names another GPU does not.
    """
    patterns = reset_patterns()
    return [
        line.strip()
        for line in kernel_log
        if any(pattern.search(line) for pattern in patterns) and _concerns(line, addresses)
    ]


@cache
def reset_patterns(file: Path = SIGNATURES) -> tuple[re.Pattern[str], ...]:
    """Return how the kernel says that a ring or the scheduler of a GPU does not answer, or that it resets the GPU."""
    rules = [one for one in read_yaml(file).data["signatures"] if (one["class"], one.get("where")) == (CLASS, "kernel")]
    texts = (re.escape(text) for rule in rules for text in rule.get("text", ()))
    return tuple(
        re.compile(pattern) for pattern in (*texts, *(regex for rule in rules for regex in rule.get("regex", ())))
    )


def _concerns(line: str, addresses: Collection[str]) -> bool:
    named = {address.lower() for address in ADDRESS.findall(line)}
    return not named or not addresses or bool(named & set(addresses))
