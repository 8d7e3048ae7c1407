import subprocess
import sys
from pathlib import Path

import pytest
from fake_gpus import CONTAINER_PIDS, TOTAL, FakeHost

from vpoc.gpu_memory.amdgpu import CardMemory, Owner, find_cards, memory_of, owners, sees_host_pids

FIRST, SECOND = "0000:03:00.0", "0000:0a:00.0"


@pytest.fixture
def host(tmp_path):
    host = FakeHost(tmp_path)
    # Sorted by name, card1 comes first; sorted by PCI address, it comes second.
    host.card(2, FIRST, 100)
    host.card(1, SECOND, 7 << 30)
    host.process(4711, "python3")
    host.process(812, "Xorg")
    return host


def test_cards_say_what_is_used(host):
    first, second = find_cards(host.root)
    assert (first.address, second.address) == (FIRST, SECOND)
    assert memory_of(first.folder) == CardMemory(100, TOTAL, 37)
    assert memory_of(second.folder) == CardMemory(7 << 30, TOTAL, 37)
    assert first.render_node == host.root / "dev/dri/renderD130"


def test_cards_that_say_nothing_are_left_out(host):
    host.write(f"sys/devices/pci0000:00/{FIRST}/mem_info_vram_used", "")
    host.write(f"sys/devices/pci0000:00/{SECOND}/mem_info_vram_total", "0\n")
    assert find_cards(host.root) == ()
    assert find_cards(host.root / "nothing") == ()


def test_a_card_need_not_say_how_busy_it_is(host):
    (host.root / f"sys/devices/pci0000:00/{FIRST}/gpu_busy_percent").unlink()
    assert memory_of(find_cards(host.root)[0].folder) == CardMemory(100, TOTAL, None)


def test_kfd_names_process_and_card(host):
    host.kfd(812, 1, 1 << 20)
    host.kfd(4711, 2, 6 << 30)
    host.kfd(4711, 1, 0)
    assert owners(host.root) == (
        Owner(4711, "python3", 6 << 30, "kfd", FIRST),
        Owner(812, "Xorg", 1 << 20, "kfd", SECOND),
    )


def test_a_process_that_is_gone_and_an_unknown_card_are_reported_as_such(host):
    host.kfd(999, 7, 4096)
    assert owners(host.root) == (Owner(999, None, 4096, "kfd", None),)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["drm-memory-vram:\t2048 KiB"], 2 << 20),
        (["drm-resident-vram:\t3 MiB", "drm-memory-vram:\t2 MiB", "drm-total-vram:\t9 MiB"], 3 << 20),
        (["drm-memory-vram:\t2 MiB", "drm-resident-vram:\t3 MiB"], 3 << 20),
        (["drm-resident-vram0:\t1 GiB", "drm-resident-vram1:\t512"], (1 << 30) + 512),
        (["drm-resident-gtt:\t4 MiB", "drm-memory-cpu:\t1 MiB"], None),
        (["drm-resident-vram:\t4 XiB"], None),
        (["drm-resident-vram:\tmuch"], None),
        (["drm-resident-vram:"], None),
    ],
)
def test_fdinfo_is_read_in_all_its_forms(host, lines, expected):
    host.fdinfo(812, 5, FIRST, 9, *lines)
    assert owners(host.root) == ((Owner(812, "Xorg", expected, "fdinfo", FIRST),) if expected else ())


def test_a_client_counts_once_however_many_descriptors_and_processes_it_has(host):
    lines = ["drm-memory-vram:\t1024 KiB"]
    host.fdinfo(812, 5, FIRST, 9, *lines)
    host.fdinfo(812, 6, FIRST, 9, *lines)
    host.fdinfo(4711, 5, FIRST, 9, *lines)
    # The same client number on another card counts, and so does another client of the same process.
    host.fdinfo(812, 7, SECOND, 9, *lines)
    host.fdinfo(812, 8, FIRST, 10, *lines)
    assert owners(host.root) == (
        Owner(812, "Xorg", 2 << 20, "fdinfo", FIRST),
        Owner(812, "Xorg", 1 << 20, "fdinfo", SECOND),
    )


def test_clients_without_a_number_all_count(host):
    host.fdinfo(812, 5, FIRST, None, "drm-memory-vram:\t1 KiB")
    host.fdinfo(812, 6, FIRST, None, "drm-memory-vram:\t1 KiB")
    assert [owner.bytes for owner in owners(host.root)] == [2048]


def test_what_both_sources_know_is_reported_once_by_the_one_that_saw_more(host):
    host.kfd(4711, 2, 5 << 20)
    host.fdinfo(4711, 5, FIRST, 9, "drm-memory-vram:\t6 MiB")
    host.kfd(812, 2, 2 << 20)
    host.fdinfo(812, 5, FIRST, 10, "drm-memory-vram:\t1 MiB")
    assert [(o.pid, o.bytes, o.source) for o in owners(host.root)] == [
        (4711, 6 << 20, "fdinfo"),
        (812, 2 << 20, "kfd"),
    ]


def test_in_a_container_a_number_of_the_host_gets_no_name_of_a_process_in_here(tmp_path):
    host = FakeHost(tmp_path, CONTAINER_PIDS)
    host.card(0, FIRST, 0)
    host.process(4711, "bystander")
    host.kfd(4711, 0, 5 << 20)
    host.fdinfo(4711, 5, FIRST, 9, "drm-memory-vram:\t1 MiB")
    assert not sees_host_pids(tmp_path)
    assert owners(tmp_path) == (
        Owner(4711, None, 5 << 20, "kfd", FIRST),
        Owner(4711, "bystander", 1 << 20, "fdinfo", FIRST),
    )


def test_what_cannot_be_read_is_left_out(host):
    host.kfd(4711, 2, 5 << 20)
    host.write("sys/class/kfd/kfd/proc/812/vram_1002", "garbage\n")
    (host.root / "sys/class/kfd/kfd/proc/813/vram_1002").mkdir(parents=True)
    host.write("proc/812/fdinfo/3", "pos:\t0\n")
    (host.root / "proc/812/fdinfo/4").mkdir()
    (host.root / "proc/812/fdinfo/5").symlink_to("nowhere")
    (host.root / "proc/900/fdinfo").parent.mkdir()
    (host.root / "proc/900/fdinfo").write_text("no folder")
    (host.root / "proc/812/fdinfo/6").write_bytes(b"drm-driver:\t\xff\xfe\ndrm-memory-vram:\t1 KiB\n")
    (host.root / "sys/class/kfd/kfd/topology/nodes/3/gpu_id").unlink()
    (host.root / "sys/class/kfd/kfd/topology/nodes/2/properties").unlink()
    assert owners(host.root) == (
        Owner(4711, "python3", 5 << 20, "kfd", None),
        Owner(812, "Xorg", 1 << 10, "fdinfo", None),
    )


def test_this_machine_can_be_looked_at_whatever_it_has():
    assert isinstance(owners(), tuple)
    assert isinstance(find_cards(), tuple)
    assert sees_host_pids() == (Path("/proc/self/ns/pid").readlink() == Path("pid:[4026531836]"))


def test_nothing_but_the_standard_library_is_loaded():
    code = "import sys, vpoc.gpu_memory.amdgpu; print(*{'torch', 'numpy', 'polars', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
