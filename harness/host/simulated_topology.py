"""The files of KFD's nodes in /sys/devices/virtual/kfd, for a simulated host with one processor and GPUs.

The keys and their order are those of `node_show`, `mem_show`, `kfd_cache_show` and `iolink_show` in kfd_topology.c of
Linux 6.8. AMD's libhsakmt reads all of them; `tests/oracles` has it read these files.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TOPOLOGY = Path("sys/devices/virtual/kfd/kfd/topology")
CORES, HOST_MEMORY = 48, 131072000 << 10
# From the kernel's kfd_crat.h: kinds of memory, of links and of caches.
SYSTEM_HEAP, PUBLIC_HEAP, PCI_EXPRESS, DATA_OF_GPU = 0, 1, 2, 9
NODE = """cpu_cores_count {cores}
simd_count {simd}
mem_banks_count 1
caches_count {caches}
io_links_count {links}
p2p_links_count 0
cpu_core_id_base 0
simd_id_base {first_simd}
max_waves_per_simd {waves}
lds_size_in_kb {lds}
gds_size_in_kb 0
num_gws {gws}
wave_front_size {wave}
array_count {arrays}
simd_arrays_per_engine {arrays_per_engine}
cu_per_simd_array {units}
simd_per_cu {simd_per_unit}
max_slots_scratch_cu {slots}
gfx_target_version {version}
vendor_id {vendor}
device_id {device}
location_id {location}
domain 0
drm_render_minor {minor}
hive_id 0
num_sdma_engines {sdma}
num_sdma_xgmi_engines 0
num_sdma_queues_per_engine {sdma_queues}
num_cp_queues {queues}
"""
GPU_ONLY = """max_engine_clk_fcompute 2394
local_mem_size 0
fw_version 2140
capability 671588992
debug_prop 1495
sdma_fw_version 20
unique_id {unique}
num_xcc 1
"""
CLOCK = "max_engine_clk_ccompute {clock}\n"
MEMORY = """heap_type {heap}
size_in_bytes {size}
flags 0
width {width}
mem_clk_max {clock}
"""
CACHE = """processor_id_low {processor}
level {level}
size {kib}
cache_line_size {line}
cache_lines_per_tag 1
association {association}
latency 1
type {kind}
sibling_map 1
"""
IO_LINK = """type {kind}
version_major 0
version_minor 0
node_from {node}
node_to {to}
weight 20
min_latency 0
max_latency 0
min_bandwidth 312
max_bandwidth 31504
recommended_transfer_size 0
recommended_sdma_engine_id_mask 0
flags {flags}
"""
FIRST_SIMD = 1 << 31
# Level, KiB, bytes of a line. There is one cache of each level here; a card has one for each pair of compute units.
CACHES = ((1, 32, 128), (2, 6144, 128), (3, 81920, 64))


@dataclass(frozen=True)
class GpuNode:
    """A GPU: node, KFD's `gpu_id`, target as KFD writes it, SIMDs, bytes of memory, PCI numbers, render node."""

    number: int
    gpu_id: int
    version: int
    simd: int
    vram: int
    device: int
    location: int
    minor: int


def gpu_node(gpu: GpuNode) -> dict[str, str | int]:
    """Return the files of a GPU's node, and of the processor's link to it, by their paths below `nodes`.

    The processor reaches all memory of the GPU, so there is a link in each direction.
    """
    properties = NODE.format(
        cores=0, simd=gpu.simd, caches=len(CACHES), links=1, first_simd=FIRST_SIMD + gpu.number * gpu.simd, waves=16,
        lds=64, gws=64, wave=32, arrays=12, arrays_per_engine=2, units=8, simd_per_unit=2, slots=32,
        version=gpu.version, vendor=0x1002, device=gpu.device, location=gpu.location, minor=gpu.minor, sdma=2,
        sdma_queues=6, queues=8,
    )  # fmt: skip
    properties += GPU_ONLY.format(unique=0xA1B2_0000_0000_0000 + gpu.gpu_id) + CLOCK.format(clock=4853)
    node = f"{gpu.number}"
    files: dict[str, str | int] = {
        f"{node}/properties": properties,
        f"{node}/gpu_id": gpu.gpu_id,
        # The kernel uses this name for every GPU that describes itself to the kernel.
        f"{node}/name": "ip discovery",
        f"{node}/mem_banks/0/properties": MEMORY.format(heap=PUBLIC_HEAP, size=gpu.vram, width=320, clock=1250),
        f"{node}/io_links/0/properties": io_link(gpu.number, 0),
        f"0/io_links/{gpu.number - 1}/properties": io_link(0, gpu.number),
    }
    for number, (level, kib, line) in enumerate(CACHES):
        cache = CACHE.format(
            processor=FIRST_SIMD, level=level, kib=kib, line=line, association=16, kind=DATA_OF_GPU
        )  # fmt: skip
        files[f"{node}/caches/{number}/properties"] = cache
    return files


def cpu_node(links: int) -> dict[str, str | int]:
    """Return the files of the processor's node, with this number of links, by their paths below `nodes`."""
    # The processor's caches are in /sys/devices/system/cpu; the other keys only matter for GPUs.
    properties = NODE.format_map(defaultdict(int, cores=CORES, links=links)) + CLOCK.format(clock=4853)
    return {
        "0/properties": properties,
        "0/gpu_id": 0,
        "0/name": "",
        "0/mem_banks/0/properties": MEMORY.format(heap=SYSTEM_HEAP, size=HOST_MEMORY, width=64, clock=2400),
    }


def io_link(node: int, to: int, flags: int = 1) -> str:
    """Return the properties of a PCIe link from one node to another."""
    return IO_LINK.format(kind=PCI_EXPRESS, node=node, to=to, flags=flags)
