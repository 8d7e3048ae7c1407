"""What the kernel log tells of GPUs that stopped answering. Pure."""

import re
from collections.abc import Collection, Iterable

# How amdgpu says that a ring or the scheduler (MES) does not answer any more, and that it resets the GPU for it.
# A page fault is not among them: that is what a faulty kernel of the training causes.
RESET = re.compile(
    r"ring \S+ timeout"
    r"|MES failed to respon[ds]"
    r"|MES might be in unrecoverable state"
    r"|MES ring buffer is full"
    r"|failed to (?:remove|add) hardware queue (?:from|to) MES"
    r"|GPU reset begin"
    r"|GPU reset succeeded"
    r"|GPU reset end"
    r"|GPU reset\(\d+\) succeeded"
    r"|VRAM is lost due to GPU reset"
    r"|GPU Hang"
)
ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)


def reset_lines(kernel_log: Iterable[str], addresses: Collection[str]) -> list[str]:
    """The lines that tell of a reset or a timeout of the GPUs at these PCI addresses (as `0000:03:00.0`).

    A line that names no address counts: older drivers leave it out. One that names another GPU does not.
    """
    return [line.strip() for line in kernel_log if RESET.search(line) and _concerns(line, addresses)]


def _concerns(line: str, addresses: Collection[str]) -> bool:
    named = {address.lower() for address in ADDRESS.findall(line)}
    return not named or not addresses or bool(named & set(addresses))
