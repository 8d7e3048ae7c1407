"""The step of a GPU's check that reads the kernel log."""

import time
from collections.abc import Iterable
from pathlib import Path

from harness.host.amdgpu import pci_address
from harness.host.facts import GpuFacts
from harness.host.kernel_log import read_kernel_log
from harness.host.kernel_resets import reset_lines
from harness.run.gpu_recovery import Step


def look_for_resets(gpus: Iterable[GpuFacts], since: float, root: Path) -> Step:
    """Return whether the kernel log tells of a reset of these GPUs from `since` (seconds since 1970) on.

    `root` holds the host's /sys and /dev. `good` is None where the log cannot be read.
    """
    began = time.monotonic()
    log = read_kernel_log(since, root)
    seconds = time.monotonic() - began
    if log.missing is not None:
        return Step("kernel-log", None, None, log.missing, seconds)
    addresses = {address for gpu in gpus if (address := pci_address(gpu, root))}
    resets = reset_lines(log.lines, addresses)
    more = f" (and {len(resets) - 1} more)" if len(resets) > 1 else ""
    told = resets[0] + more if resets else f"{len(log.lines)} lines, no reset among them"
    return Step("kernel-log", None, not resets, told, seconds)
