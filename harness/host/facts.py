"""The facts about a machine and its GPUs, as records keep them."""

from pydantic import Field

from harness.base.files.json_files import File, OneLine


class GpuFacts(File):
    """A GPU as the host's driver describes it."""

    index: int
    gfx: OneLine
    name: OneLine
    memory_bytes: int | None
    render_node: str | None
    kfd_id: int | None = Field(description="the driver's id of it, in /sys/class/kfd/kfd/proc")
    displays: tuple[OneLine, ...] = Field((), description="its connectors with a screen attached, on or asleep")
    firmware: dict[OneLine, OneLine] = Field({}, description="version by block, of those that computing depends on")
    vbios: OneLine | None = Field(None, description="version of its VBIOS")
    address: OneLine | None = Field(None, description="its PCI address, by which the kernel log names it")


class HostFacts(File):
    """The machine. Its kind, to which evidence is bound, is GPU targets, their count and firmware, driver and kernel.

    A change that a person reported makes it another kind. A simulated host (`matrix --root FOLDER`) is a kind of its
    own, so that it is never taken for a real one.
    """

    fingerprint: str
    kind: str
    machine: str = Field(description="the same whatever kernel and driver it runs")
    operating_system: OneLine
    kernel: OneLine
    driver: OneLine | None
    cpu: OneLine
    cores: int
    memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    boot_id: str
    changes: tuple[OneLine, ...] = Field((), description="what `matrix host-changed` noted, the oldest first")
    former_fingerprints: tuple[str, ...] = Field((), description="its fingerprint before each of these changes")
    kernel_parameters: dict[OneLine, OneLine] = Field(
        {}, description="those of the kernel and of amdgpu that ROCm depends on"
    )
    simulated: bool = Field(False, description="read from a folder that stands for /sys, /proc and /dev")
