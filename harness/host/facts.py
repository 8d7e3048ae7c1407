"""The facts of a machine and its GPUs, as records keep them."""

from pydantic import Field

from harness.base.json_files import File


class GpuFacts(File):
    """A GPU as the host's driver describes it."""

    index: int
    gfx: str
    name: str
    memory_bytes: int | None
    render_node: str | None
    kfd_id: int | None = Field(description="the driver's id of it, in /sys/class/kfd/kfd/proc")
    displays: tuple[str, ...] = Field((), description="its connectors with a screen attached, on or asleep")


class HostFacts(File):
    """The machine. Its kind (what evidence is bound to) is GPU targets, their count, driver and kernel.

    A simulated one (`matrix --root FOLDER`) is a kind of its own: no real host is ever taken for it.
    """

    fingerprint: str
    kind: str
    machine: str = Field(description="the same whatever kernel and driver it runs")
    operating_system: str
    kernel: str
    driver: str | None
    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    boot_id: str
    simulated: bool = Field(False, description="read from a folder that stands for /sys, /proc and /dev")
