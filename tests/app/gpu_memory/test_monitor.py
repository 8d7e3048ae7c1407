import json
import mmap
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_gpus import CONTAINER_PIDS, ME, TOTAL, FakeHost

from vpoc.gpu_memory.monitor import RELEASE_EVERY_S, MemoryMonitor
from vpoc.gpu_memory.torch_memory import Allocator, TorchMemory
from vpoc.progress import Progress, rss_bytes

FIRST, SECOND = "0000:03:00.0", "0000:0a:00.0"
CPU, GPU, OTHER = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
GIB, MIB = 1 << 30, 1 << 20
KEYS = ["peak_allocated_bytes", "peak_reserved_bytes", "peak_driver_bytes", "peak_rss_bytes", "fragmentation", "owners"]


class FakeAllocator:
    """A stand-in for torch with GPUs: the memory it holds by device, and the PCI addresses that it reports."""

    def __init__(self, addresses=(FIRST, SECOND), held=(), total=TOTAL):
        self.addresses = addresses
        self.held = dict(enumerate(held))
        self.peaks = {}
        self.released = 0
        self.asked = []
        self.total = total

    def memory(self, device):
        allocated, reserved = self.held.get(device.index, (0, 0))
        peak = self.peaks.get(device.index, (allocated, reserved))
        return TorchMemory(allocated, reserved, *peak)

    def driver(self, device):
        self.asked.append(device.index)
        return 1234, self.total

    def address(self, device):
        return self.addresses[device.index] if self.addresses else None

    def count(self):
        return 2

    def release(self):
        self.released += 1


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def host(tmp_path):
    host = FakeHost(tmp_path)
    host.card(0, FIRST, 0)
    host.card(1, SECOND, 0)
    return host


def monitor(host, allocator, devices=(GPU,), **more):
    more = {"skip_cleanup": False, "variables": {}, **more}
    return MemoryMonitor(list(devices), root=host.root, allocator=allocator, **more)


def test_a_cpu_has_resident_memory_alone(host):
    watched = MemoryMonitor([CPU, CPU], skip_cleanup=False, root=host.root)
    host.kfd(ME, 0, GIB)
    sample = watched.sample()
    assert 0.5 < sample.rss_bytes / rss_bytes() < 2
    assert (sample.allocated_bytes, sample.reserved_bytes, sample.driver_used_bytes) == (None,) * 3
    assert sample.fragmentation is None
    assert watched.read() == (0, 0)
    assert watched.disconnect(sample) is None
    watched.release()
    peaks = watched.peaks()
    assert list(peaks) == KEYS
    assert peaks.pop("peak_rss_bytes") >= sample.rss_bytes * 0.9
    assert peaks.pop("owners") == []
    assert set(peaks.values()) == {None}


def test_resident_memory_that_was_given_back_is_remembered(host):
    watched = MemoryMonitor([CPU], skip_cleanup=False, root=host.root)
    # Mapped directly, because whether an allocator returns memory to the kernel depends on earlier allocations.
    with mmap.mmap(-1, 64 * MIB) as ballast:
        ballast[:] = bytes(64 * MIB)
        high = watched.sample().rss_bytes
    assert watched.peaks()["peak_rss_bytes"] >= high > watched.sample().rss_bytes + 32 * MIB


@pytest.mark.slow
def test_resident_memory_between_two_looks_is_remembered(host):
    """The test needs a process of its own, because this one may have had a higher peak before."""
    code = """
import sys, torch
from vpoc.gpu_memory.monitor import MemoryMonitor
watched = MemoryMonitor([torch.device("cpu")], skip_cleanup=False)
low = watched.sample().rss_bytes
ballast = b"x" * (256 << 20)
del ballast
print(watched.peaks()["peak_rss_bytes"] - low)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 250 * MIB


def test_a_sample_adds_up_torch_and_takes_the_driver_of_the_fullest_card(host):
    host.used(FIRST, 3 * GIB)
    host.used(SECOND, 5 * GIB)
    watched = monitor(host, FakeAllocator(held=[(1 * GIB, 2 * GIB), (2 * GIB, 4 * GIB)]), [GPU, OTHER])
    sample = watched.sample()
    assert (sample.allocated_bytes, sample.reserved_bytes, sample.fragmentation) == (3 * GIB, 6 * GIB, 0.5)
    assert sample.driver_used_bytes == 5 * GIB
    assert watched.read() == (3 * GIB, 6 * GIB)


def test_progress_lines_can_show_it(host, tmp_path):
    progress = Progress(tmp_path / "run")
    progress.device_memory = monitor(host, FakeAllocator(held=[(10, 30)])).read
    progress.phase("step")
    line = json.loads((tmp_path / "run" / "progress-0.jsonl").read_text())
    assert (line["memory"]["device_allocated_bytes"], line["memory"]["device_reserved_bytes"]) == (10, 30)


def test_a_process_looks_at_its_own_cards_only(host):
    host.used(FIRST, 1 * GIB)
    host.used(SECOND, 9 * GIB)
    assert monitor(host, FakeAllocator()).sample().driver_used_bytes == 1 * GIB
    assert monitor(host, FakeAllocator(addresses=(SECOND, FIRST))).sample().driver_used_bytes == 9 * GIB


def test_without_addresses_the_order_tells_when_nothing_is_hidden(host):
    host.used(FIRST, 1 * GIB)
    host.used(SECOND, 9 * GIB)
    older = FakeAllocator(addresses=())
    assert [d.driver_used_bytes for d in monitor(host, older, [OTHER, GPU]).sample().devices] == [9 * GIB, 1 * GIB]
    assert older.asked == []


def test_without_addresses_the_order_is_that_of_the_compute_driver_not_of_the_bus(host):
    host.used(FIRST, 1 * GIB)
    host.used(SECOND, 9 * GIB)
    nodes = host.root / "sys/class/kfd/kfd/topology/nodes"
    # The nodes are sorted as numbers, so 10 comes after 2.
    (nodes / "1").rename(nodes / "10")
    assert monitor(host, FakeAllocator(addresses=())).sample().driver_used_bytes == 9 * GIB
    # HIP does not count a card that the compute driver does not list.
    (nodes / "10/gpu_id").unlink()
    assert monitor(host, FakeAllocator(addresses=())).sample().driver_used_bytes == 1234


@pytest.mark.parametrize(
    "variable", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"]
)
def test_where_the_card_is_not_certain_the_runtime_is_asked(host, variable):
    assert monitor(host, FakeAllocator(()), variables={variable: "1,0"}).sample().driver_used_bytes == 1234
    (host.root / "dev/dri/renderD129").unlink()
    assert monitor(host, FakeAllocator(())).sample().driver_used_bytes == 1234
    elsewhere = FakeAllocator(addresses=("0000:ff:00.0",))
    assert monitor(host, elsewhere).sample().driver_used_bytes == 1234
    assert elsewhere.asked == [0]


def test_a_card_that_falls_silent_does_not_end_the_training(host):
    watched = monitor(host, FakeAllocator())
    (host.root / f"sys/devices/pci0000:00/{FIRST}/mem_info_vram_used").unlink()
    assert watched.sample().driver_used_bytes == 1234


def test_peaks_are_torchs_own_and_the_highest_that_the_driver_said(host):
    torch_like = FakeAllocator(held=[(4 * GIB, 5 * GIB)])
    watched = monitor(host, torch_like)
    host.used(FIRST, 12 * GIB)
    watched.sample()
    host.used(FIRST, 2 * GIB)
    torch_like.held[0] = (1 * GIB, 3 * GIB)
    torch_like.peaks[0] = (6 * GIB, 7 * GIB)
    host.process(ME, "python3")
    host.kfd(ME, 0, 4 * GIB)
    peaks = watched.peaks()
    assert (peaks["peak_allocated_bytes"], peaks["peak_reserved_bytes"]) == (6 * GIB, 7 * GIB)
    assert peaks["peak_driver_bytes"] == 12 * GIB
    assert peaks["fragmentation"] == pytest.approx(0.2), "of the sample with the most reserved"
    assert peaks["owners"] == [{"pid": ME, "name": "python3", "bytes": 4 * GIB, "source": "kfd", "card": FIRST}]
    json.dumps(peaks, allow_nan=False)


def test_nothing_reserved_is_not_fragmented(host):
    assert monitor(host, FakeAllocator(held=[(0, 0)])).sample().fragmentation is None


def told(host, used, reserved, devices=(GPU,)):
    host.used(FIRST, used)
    watched = monitor(host, FakeAllocator(held=[(reserved, reserved)]), devices)
    line = watched.disconnect(watched.sample())
    assert line is None or "\n" not in line
    return line


def test_the_disconnect_of_the_notes_names_the_owner_and_what_to_do(host):
    """99 % of the memory is used, but torch holds only 203 KB of it."""
    host.process(4711, "python3")
    host.process(ME, "python3")
    host.kfd(4711, 0, 19 * GIB)
    host.kfd(ME, 0, 300 * MIB)
    host.kfd(812, 1, 5 * GIB)
    line = told(host, int(TOTAL * 0.99), 203 << 10)
    assert line == (
        f"cuda:0 ({FIRST}): the driver says 19.8 GiB of 20.0 GiB (99 %) are used, torch holds 203.0 KiB; "
        f"held by pid 4711 (python3) 19.0 GiB, pid {ME} (python3, this process) 300.0 MiB; "
        f"this process is pid {ME} and holds 300.0 MiB; end pid 4711, or train on another GPU"
    )


def test_there_is_no_disconnect_where_torch_fills_the_card_or_nobody_does(host):
    host.kfd(4711, 0, 19 * GIB)
    assert told(host, int(TOTAL * 0.94), 0) is None
    assert told(host, TOTAL, 11 * GIB) is None
    assert told(host, TOTAL, 9 * GIB) is not None


def test_memory_of_nobody_in_sight_is_reported_as_such(host):
    line = told(host, TOTAL, 0)
    assert "held by no visible process" in line
    assert "`sudo fuser -v /dev/kfd /dev/dri/render*`" in line
    assert "end pid" not in line


def test_a_gap_between_the_driver_and_the_owners_is_nobodys_too(host):
    host.kfd(4711, 0, 2 * GIB)
    line = told(host, TOTAL, 0)
    assert "pid 4711 (no name) 2.0 GiB" in line
    assert "no process that can be seen" in line


def test_memory_outside_torchs_cache_is_this_processs_own(host):
    host.kfd(ME, 0, 18 * GIB)
    line = told(host, TOTAL, 0)
    assert f"this process is pid {ME} and holds 18.0 GiB; this process holds it outside torch's cache" in line
    assert "PYTORCH_NO_HIP_MEMORY_CACHING" in line


def test_many_owners_are_counted(host):
    for pid in range(5000, 5006):
        host.kfd(pid, 0, 3 * GIB)
    assert "pid 5002 (no name) 3.0 GiB, 3 more;" in told(host, TOTAL, 0)


def test_in_a_container_it_says_whose_numbers_the_pids_are(tmp_path):
    host = FakeHost(tmp_path, CONTAINER_PIDS)
    host.card(0, FIRST, 0)
    host.kfd(4711, 0, 19 * GIB)
    host.kfd(4242, 0, 300 * MIB)
    host.process(ME, "python3")
    host.fdinfo(ME, 5, FIRST, 9, f"drm-memory-vram:\t{300 << 10} KiB")
    line = told(host, TOTAL, 0)
    assert "held by pid 4711 of the host 19.0 GiB, pid 4242 of the host 300.0 MiB;" in line
    assert f"this process is pid {ME} in its container and holds 300.0 MiB; end pid 4711 of the host, or" in line


def test_in_a_container_a_number_of_the_host_that_equals_ours_is_not_us(tmp_path):
    host = FakeHost(tmp_path, CONTAINER_PIDS)
    host.card(0, FIRST, 0)
    host.kfd(ME, 0, 19 * GIB)
    line = told(host, TOTAL, 0)
    assert f"holds 0 bytes; end pid {ME} of the host" in line
    assert "(this process)" not in line


def test_in_a_container_without_kfd_fdinfo_is_reported(tmp_path):
    host = FakeHost(tmp_path, CONTAINER_PIDS)
    host.card(0, FIRST, 0)
    host.process(31, "python3")
    host.fdinfo(31, 5, FIRST, 9, "drm-memory-vram:\t19 GiB")
    assert "held by pid 31 (python3) 19.0 GiB;" in told(host, TOTAL, 0)


def test_the_fullest_card_is_the_one_that_is_reported(host):
    host.used(SECOND, TOTAL)
    assert told(host, 1 * GIB, 0, (GPU, OTHER)).startswith(f"cuda:1 ({SECOND}):")
    assert told(host, TOTAL - GIB // 2, 0, (GPU, OTHER)).startswith(f"cuda:1 ({SECOND}):"), "the fuller of two"


def releases(host, used, held, **more):
    host.used(FIRST, used)
    allocator = FakeAllocator(held=[held])
    watched = monitor(host, allocator, clock=Clock(), **more)
    watched.sample()
    watched.release()
    return allocator.released


@pytest.mark.parametrize(
    ("used", "allocated", "reserved", "expected"),
    [
        # Fragmented memory: torch holds more than half of the card, and more than 30 % of what it holds is unused.
        (0.6, 0.35, 0.51, 1),
        (0.6, 0.36, 0.51, 0),
        (0.6, 0.10, 0.49, 0),
        # A nearly full card: the driver reports 90 % used, and torch's cache holds a tenth of the card unused.
        (0.90, 0.30, 0.41, 1),
        (0.89, 0.30, 0.41, 0),
        (0.99, 0.32, 0.41, 0),
    ],
)
def test_memory_is_given_back_when_it_is_worth_it(host, used, allocated, reserved, expected):
    shares = [int(np.ceil(share * TOTAL)) for share in (used, allocated, reserved)]
    assert releases(host, shares[0], (shares[1], shares[2])) == expected
    assert releases(host, shares[0], (shares[1], shares[2]), skip_cleanup=True) == 0


def test_memory_is_not_given_back_too_often(host):
    host.used(FIRST, TOTAL)
    allocator, clock = FakeAllocator(held=[(GIB, 19 * GIB)]), Clock()
    watched = monitor(host, allocator, clock=clock)
    watched.release()
    assert allocator.released == 0, "nothing was looked at yet"
    watched.sample()
    for _ in range(3):
        watched.release()
    assert allocator.released == 1
    clock.now += RELEASE_EVERY_S - 0.1
    watched.release()
    assert allocator.released == 1
    clock.now += 0.1
    watched.release()
    assert allocator.released == 2


def test_torch_has_what_is_asked_of_it():
    """Without a GPU, torch answers zero; the functions must exist and must not initialise a GPU."""
    edge = Allocator()
    assert edge.count() == torch.cuda.device_count()
    if not torch.cuda.is_available():
        assert edge.memory(GPU) == TorchMemory(0, 0, 0, 0)
        edge.release()
        assert not torch.cuda.is_initialized()


def test_torchs_answers_are_read(monkeypatch):
    """The answers have the shapes that torch documents for `memory_stats`, because there may be no GPU to ask."""
    stats = {
        f"{name}_bytes": {"all": {"current": n, "peak": n + 1, "allocated": 0, "freed": 0}, "large_pool": {}}
        for n, name in ((10, "allocated"), (20, "reserved"), (30, "active"))
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    edge = Allocator()
    assert edge.memory(GPU) == TorchMemory(10, 20, 11, 21)
    assert edge.driver(GPU) == (70, 100)
    newer = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x0A, pci_device_id=0)
    for properties, address in ((newer, "0000:0a:00.0"), (SimpleNamespace(name="older torch"), None)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, answer=properties: answer)
        assert edge.address(GPU) == address


@pytest.mark.gpu
def test_a_real_gpu_is_watched():
    device = torch.device("cuda", torch.cuda.current_device())
    ballast = torch.ones(64 * MIB, dtype=torch.uint8, device=device)
    watched = MemoryMonitor([device], skip_cleanup=False)
    before = watched.sample()
    assert before.allocated_bytes >= 64 * MIB
    assert before.reserved_bytes >= before.allocated_bytes
    assert before.fullest.driver_total_bytes >= before.driver_used_bytes >= before.reserved_bytes
    del ballast
    Allocator().release()
    after = watched.sample()
    assert after.reserved_bytes <= before.reserved_bytes - 64 * MIB
    peaks = watched.peaks()
    assert peaks["peak_allocated_bytes"] >= 64 * MIB
    assert peaks["peak_driver_bytes"] == before.driver_used_bytes
    address = Allocator().address(device)
    assert address is None or re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", address)
