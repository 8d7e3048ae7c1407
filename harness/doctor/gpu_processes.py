"""Which processes hold memory of the GPUs."""

from collections.abc import Sequence
from pathlib import Path

from harness.doctor.machine import GpuProcess, HostGpu
from harness.host.memory_owners import memory_owners


def read_gpu_processes(root: Path, gpus: Sequence[HostGpu]) -> tuple[GpuProcess, ...]:
    """Processes with memory on a GPU, each once. Those of other users that only draw are not seen without root."""
    labels = {str(gpu.facts.kfd_id): gpu.label for gpu in gpus if gpu.facts.kfd_id}
    labels |= {gpu.card.address: gpu.label for gpu in gpus if gpu.card}
    found: dict[tuple[int, str], GpuProcess] = {}
    for owner in memory_owners((), root):
        label, computes = labels.get(owner.gpu), owner.source == "kfd"
        # A process that computes has render nodes open as well, and the two are not to be added up.
        if label and (computes or (owner.pid, label) not in found):
            found[owner.pid, label] = GpuProcess(owner.pid, owner.name or "ended", label, owner.bytes, computes)
    return tuple(found[key] for key in sorted(found))
