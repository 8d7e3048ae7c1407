"""The facts of a machine that the checks examine, as plain values."""

import stat
from dataclasses import dataclass

from packaging.version import Version

from harness.host.facts import GpuFacts, HostFacts
from harness.matrix.wheels import supported_targets

AMD, NVIDIA = 0x1002, 0x10DE


@dataclass(frozen=True)
class Caller:
    """The calling user. `groups` are the numeric groups of this process, not those of /etc/group."""

    uid: int
    groups: frozenset[int]


@dataclass(frozen=True)
class SlurmHook:
    """A hook of Slurm.

    `name`: `Prolog` or `Epilog`.
    `programs`: the programs that Slurm is configured to run.
    `ours`: the one of them that runs this tool's hook on this host; None if there is none.
    """

    name: str
    programs: tuple[str, ...]
    ours: str | None


@dataclass(frozen=True)
class Node:
    """A device node; `usable`: whether the caller may read and write it."""

    path: str
    mode: int
    owner: int
    group: int
    group_name: str | None
    usable: bool

    @property
    def sentence(self) -> str:
        """Return path, mode, owner and group, in the form of `ls -ln`."""
        name = self.group_name or "without a name"
        return f"{self.path} ({stat.filemode(self.mode)}, uid {self.owner}, gid {self.group} {name})"


@dataclass(frozen=True)
class Link:
    """The PCIe link of a card: current and maximum lanes and GT/s. `slot_speed` is the slot's maximum in GT/s."""

    lanes: int
    most_lanes: int
    speed: float | None
    most_speed: float | None
    slot_speed: float | None


@dataclass(frozen=True)
class Card:
    """A display controller on the PCI bus.

    `bridges`: the number of bridges between its slot and the processor.
    `window`: the number of bytes of its memory that the processor can address.
    `memory`, `memory_used`: in bytes.
    `root_port`: the root port of the processor or chipset that its path starts at; None if it is unknown.
    """

    address: str
    vendor: int
    driver: str | None
    link: Link | None
    bridges: int
    window: int | None
    memory: int | None
    memory_used: int | None
    render_node: str | None
    root_port: str | None = None


@dataclass(frozen=True)
class HostGpu:
    """A GPU that ROCm sees.

    `atomics`: whether its PCIe path supports atomics; None if that cannot be read.
    `resettable`: whether the caller may write to the kernel's file that resets it; None if there is no such file.
    `unhealthy`: how its last probe since the boot failed; None if it did not.
    """

    facts: GpuFacts
    card: Card | None
    atomics: bool | None
    resettable: bool | None
    unhealthy: str | None = None

    @property
    def label(self) -> str:
        """Return the name of the GPU in findings."""
        return f"GPU {self.facts.index} ({self.facts.gfx}{f', {self.card.address}' if self.card else ''})"

    @property
    def trains(self) -> bool:
        """Return whether PyTorch's wheels have kernels for it."""
        return self.facts.gfx in supported_targets()


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU.

    `name`: None where it has ended.
    `gpu`: the label of the GPU.
    `memory`: in bytes.
    `computes`: whether the process uses the GPU through ROCm.
    """

    pid: int
    name: str | None
    gpu: str
    memory: int
    computes: bool


@dataclass(frozen=True)
class Wsl:
    """The Windows Subsystem for Linux: its version, whether it has a GPU, and the library for it."""

    version: int
    gpu: bool
    library: bool


@dataclass(frozen=True)
class BaseImage:
    """A base image: whether the engine has it, and why it cannot be pulled (None if it is here or can be pulled)."""

    name: str
    here: bool
    unreachable: str | None = None


@dataclass(frozen=True)
class Docker:
    """The Docker engine: its version, or the reason why it cannot be used (both None if there is no engine).

    `executor`: the value of MATRIX_EXECUTOR; if it is `process`, the engine is not asked.
    `maps_users`: the name of the engine's user mapping; None without one.
    `no_builder`: why images cannot be built; None if they can be.
    `bases`: the base images of the stacks that are not built yet.
    """

    executor: str | None = None
    refusal: str | None = None
    version: str | None = None
    maps_users: str | None = None
    desktop: bool = False
    storage: str = ""
    cgroups: str = ""
    no_builder: str | None = None
    bases: tuple[BaseImage, ...] = ()

    @property
    def answers(self) -> bool:
        """Return whether there is an engine that this user may use."""
        return self.version is not None


@dataclass(frozen=True)
class Room:
    """The needs of the default selection on this host.

    `cells`: the number of cells that can run here.
    `left_out`: the reasons why other cells cannot.
    `place`: where stacks are stored.
    `needed_gb`: the disk space of the stacks that fit, made one after the other.
    `no_room`: the stacks that do not fit.
    `write_speed`: in MB/s, with fsync.
    """

    sentence: str
    cells: int
    left_out: tuple[str, ...]
    place: str
    needed_gb: float
    free_gb: float | None
    write_speed: float | None
    no_room: tuple[str, ...] = ()


@dataclass(frozen=True)
class WantedRocm:
    """The ROCm versions of the matrix, each with the name of a torch stack, and those of the default selection."""

    stacks: tuple[tuple[str, str], ...]
    default: frozenset[str]

    def versions(self) -> list[str]:
        """Return each version once, oldest first; 7.14 and 7.14.0 are the same version."""
        return [rocm for _, rocm in sorted({Version(rocm): rocm for rocm, _ in self.stacks}.items())]


@dataclass(frozen=True)
class Machine:
    """A machine. A value of None could not be read, or was not asked for."""

    host: HostFacts
    gpus: tuple[HostGpu, ...]
    cards: tuple[Card, ...]
    kfd: Node | None
    render_nodes: tuple[Node, ...]
    caller: Caller
    reads_journal: bool
    boot_words: tuple[str, ...]
    iommu: bool
    boot_tool: str
    glibc: str | None
    shared_memory: int | None
    locked_memory: float | None
    ptrace_scope: int | None
    dmesg_restrict: int | None
    processes: tuple[GpuProcess, ...]
    wsl: Wsl | None
    rocm: WantedRocm
    docker: Docker | None = None
    room: Room | None = None
    slurm_hooks: tuple[SlurmHook, ...] = ()
    changeable_by_others: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
    results_full: str | None = None

    @property
    def engine(self) -> Docker | None:
        """Return the Docker engine, if there is one that this user may use."""
        return self.docker if self.docker and self.docker.answers else None

    @property
    def training(self) -> tuple[HostGpu, ...]:
        """Return the GPUs that PyTorch's wheels have kernels for."""
        return tuple(gpu for gpu in self.gpus if gpu.trains)

    @property
    def amd_cards(self) -> tuple[Card, ...]:
        """Return the cards with AMD's vendor id."""
        return tuple(card for card in self.cards if card.vendor == AMD)
