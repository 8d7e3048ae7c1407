"""All calls to torch about the memory of GPUs, in one place, so that everything else can be tested without a GPU."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TorchMemory:
    """Bytes that torch's allocator holds on a device: in tensors, reserved from the driver, and the peaks of both."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class Allocator:
    """The questions to torch, and to the runtime under it."""

    def memory(self, device: torch.device) -> TorchMemory:
        """Return the memory that torch holds on `device`; zeros before its first use."""
        # The flat form of the same numbers takes ten times as long to build.
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        if not stats:
            return TorchMemory(0, 0, 0, 0)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return TorchMemory(allocated["current"], reserved["current"], allocated["peak"], reserved["peak"])

    def driver(self, device: torch.device) -> tuple[int, int]:
        """Return the bytes used by all processes and the total bytes of `device`, as the runtime reports them."""
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total

    def address(self, device: torch.device) -> str | None:
        """PCI address of `device`, such as `0000:03:00.0`; None where torch is 2.8 or older, which does not tell it."""
        properties: Any = torch.cuda.get_device_properties(device)
        if not hasattr(properties, "pci_bus_id"):
            return None
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"

    def count(self) -> int:
        """Return the number of devices that torch sees."""
        return torch.cuda.device_count()

    def release(self) -> None:
        """Return to the driver what torch reserved and does not use, on all devices."""
        torch.cuda.empty_cache()
