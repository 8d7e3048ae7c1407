import math
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.doctor.machine import Caller, Machine, Wsl
from harness.host.simulated_topology import io_link
from tests.harness.doctor import trees

Read = Callable[[Path], Machine]


def test_a_dual_7900xt_host(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    machine = read(tmp_path)
    assert [gpu.label for gpu in machine.gpus] == ["GPU 0 (gfx1100, 0000:03:00.0)", "GPU 1 (gfx1100, 0000:43:00.0)"]
    card = machine.gpus[0].card
    assert card is not None
    assert (card.driver, card.render_node) == ("amdgpu", "/dev/dri/renderD128")
    assert (card.window, card.memory, card.memory_used) == (32 * trees.GIB, trees.VRAM_7900XT, 812 << 20)
    assert (card.bridges, [gpu.atomics for gpu in machine.gpus]) == (0, [True, True])
    assert len(machine.cards) == len(tree.gpus)
    assert [node.path for node in machine.render_nodes] == ["/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert machine.caller == Caller(trees.CALLER, frozenset({4, 27, trees.GROUP, 1000}))
    assert (machine.glibc, machine.shared_memory, machine.locked_memory) == ("2.39", 65536000 * 1024, math.inf)
    assert (machine.iommu, "iommu=pt" in machine.boot_words, machine.wsl) == (True, True, None)


def test_the_link_is_that_of_the_slot_not_the_one_to_the_cards_own_switch(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.width(tree.gpus[1].parent.parent, 8, speed="2.5")
    first, second = (gpu.card.link for gpu in read(tmp_path).gpus if gpu.card and gpu.card.link)
    assert (first.lanes, first.speed) == (16, 16.0)
    assert (second.lanes, second.most_lanes, second.speed, second.most_speed) == (8, 16, 2.5, 16.0)


def test_links_in_a_circle_are_no_cards(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:99:00.0").symlink_to("0000:99:00.0")
    assert len(read(tmp_path).cards) == len(tree.gpus)


@pytest.mark.parametrize("resource", ["", "0x0", f"{'9' * 5000} 0x0 0x0", "no number 0x0"])
def test_a_card_whose_memory_window_is_not_told(resource: str, read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.write(tree.gpus[0] / "resource", resource)
    card = read(tmp_path).gpus[0].card
    assert card is not None
    assert card.window is None


@pytest.mark.parametrize(("lanes", "speed"), [(0, "Unknown"), (255, "Unknown")])
def test_a_link_that_the_kernel_does_not_know(lanes: int, speed: str, read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.width(tree.gpus[0].parent.parent, lanes, speed=speed)
    card = read(tmp_path).gpus[0].card
    assert card is not None
    assert card.link is None


def configuration(control: int) -> bytes:
    """Return PCI configuration space with a power capability at 0x48 and the PCI Express one at 0x64, as on Navi."""
    space = bytearray(256)
    space[0x34], space[0x48], space[0x49], space[0x64], space[0x65] = 0x48, 0x01, 0x64, 0x10, 0x00
    space[0x64 + 0x28 : 0x64 + 0x2A] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("to_host", "to_other", "expected"),
    [(1, 13, True), (1 | 1 << 2, 1, False), (1 | 1 << 3, 1, False)],
    ids=["none with the other GPU", "none of 32 bits", "none of 64 bits"],
)
def test_atomics_are_those_of_the_path_to_the_processor(
    to_host: int, to_other: int, expected: bool, read: Read, tmp_path: Path
) -> None:
    tree = trees.dual_7900xt(tmp_path)
    links = "sys/class/kfd/kfd/topology/nodes/1/io_links"
    tree.write(f"{links}/0/properties", io_link(1, 0, flags=to_host))
    tree.write(f"{links}/1/properties", io_link(1, 2, flags=to_other))
    assert [gpu.atomics for gpu in read(tmp_path).gpus] == [expected, True]


def test_one_path_to_a_processor_without_atomics_is_enough(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    nodes = "sys/class/kfd/kfd/topology/nodes"
    tree.write(f"{nodes}/3/gpu_id", 0)
    tree.write(f"{nodes}/1/io_links/1/properties", io_link(1, 3, flags=13))
    assert [gpu.atomics for gpu in read(tmp_path).gpus] == [False, True]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (configuration(0x0040), True),
        (configuration(0x0009), False),
        (configuration(0x0040)[:64], None),
        (b"", None),
        (bytes([0] * 0x34 + [0x48] + [0] * 19 + [0x09, 0x48] * 96), None),
        (None, None),
    ],
    ids=["enabled", "not enabled", "as a user reads it", "empty", "a ring", "missing"],
)
def test_atomics_from_the_configuration_where_kfd_does_not_tell(
    config: bytes | None, expected: bool | None, read: Read, tmp_path: Path
) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.remove("sys/class/kfd/kfd/topology/nodes/1/io_links")
    if config is not None:
        (tree.gpus[0] / "config").write_bytes(config)
    assert [gpu.atomics for gpu in read(tmp_path).gpus] == [expected, True]


def test_shared_memory_of_a_container(read: Read, tmp_path: Path) -> None:
    tree = trees.none(tmp_path)
    tree.write("proc/mounts", "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0")
    assert read(tmp_path).shared_memory == 64 << 20
    tree.write("proc/mounts", "overlay / overlay rw 0 0\n/dev/sda1 /dev/shm ext4 rw 0 0")
    assert read(tmp_path).shared_memory is None


@pytest.mark.parametrize(
    ("kernel", "dxg", "expected"),
    [
        ("6.8.0-60-generic", False, None),
        ("5.15.167.4-microsoft-standard-WSL2", False, Wsl(2, gpu=False, library=False)),
        ("6.8.0-my-own", True, Wsl(2, gpu=True, library=False)),
        ("4.4.0-19041-Microsoft", False, Wsl(1, gpu=False, library=False)),
    ],
)
def test_windows_subsystem(kernel: str, dxg: bool, expected: Wsl | None, read: Read, tmp_path: Path) -> None:
    tree = trees.none(tmp_path)
    tree.kernel(kernel)
    if dxg:
        tree.node("dev/dxg")
    assert read(tmp_path).wsl == expected


def test_an_open_file_that_was_inherited_counts_once(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    for file, client, kib in ((7, 11, 1000), (8, 11, 1000), (9, 12, 24)):
        tree.draw(4711, file, client, tree.gpus[0], kib)
    tree.compute(4712, 51002, 3 << 30)
    tree.compute(4713, 51002, 0)
    told = [(p.pid, p.name, p.gpu, p.memory, p.computes) for p in read(tmp_path).processes]
    assert told == [
        (4711, "gnome-shell", "GPU 0 (gfx1100, 0000:03:00.0)", 1024 << 10, False),
        (4712, "python3", "GPU 1 (gfx1100, 0000:43:00.0)", 3 << 30, True),
    ]


def test_a_process_that_computes_is_not_counted_again_for_its_open_files(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.compute(4712, 51001, 3 << 30)
    tree.draw(4712, 5, 9, tree.gpus[0], 3 << 20)
    assert [process.computes for process in read(tmp_path).processes] == [True]


def test_an_empty_root_is_a_machine_with_nothing(read: Read, tmp_path: Path) -> None:
    machine: Machine = read(tmp_path / "nothing")
    assert (machine.gpus, machine.cards, machine.kfd, machine.glibc) == ((), (), None, None)
