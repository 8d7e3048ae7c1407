"""Tests that AMD's libhsakmt, through rocminfo, reads a simulated host as the harness reads it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from harness.doctor.checks import examine
from harness.doctor.read import read_machine
from harness.host.fingerprint import read_host
from harness.host.simulated import SimulatedHost, with_driver, without_gpu
from harness.host.simulated_topology import TOPOLOGY, io_link
from harness.matrix.cells import Matrix
from tests.oracles.programs import Programs

NODES = TOPOLOGY / "nodes"
# HSA_AMD_LINK_INFO_TYPE_PCIE of hsa_ext_amd.h; KFD uses another number for PCI Express.
PCI_EXPRESS_OF_HSA = 2


@dataclass(frozen=True)
class Agent:
    """A processor or GPU as rocminfo prints it: the first line of each name, and the sizes of its memory pools."""

    lines: dict[str, str]
    pools_kib: tuple[int, ...]

    def number(self, name: str) -> int:
        return int(self.lines[name].split("(")[0])


def agents(printed: str) -> list[Agent]:
    found = []
    for part in re.split(r"^\*+\s*\nAgent \d+\s*\n\*+\s*\n", printed, flags=re.MULTILINE)[1:]:
        lines: dict[str, str] = {}
        for name, value in re.findall(r"^\s+([^:\n]+):+[ \t]+(\S.*?)\s*$", part, re.MULTILINE):
            lines.setdefault(name, value)
        pools = re.findall(r"Segment:\s+GLOBAL.*\n\s+Size:\s+(\d+)", part)
        found.append(Agent(lines, tuple(map(int, pools))))
    return found


def gpus(programs: Programs, host: SimulatedHost) -> list[Agent]:
    printed = programs.rocminfo(host.root, driver_answers=True)
    read = agents(printed)
    assert read, printed
    return [agent for agent in read if agent.lines["Device Type"] == "GPU"]


def test_amds_library_reads_the_gpus_that_the_harness_reads(programs: Programs, host: SimulatedHost) -> None:
    ours = read_host(host.root).gpus
    theirs = gpus(programs, host)
    assert [agent.lines["Name"] for agent in theirs] == [gpu.gfx for gpu in ours] == ["gfx1100", "gfx1100"]
    for agent, gpu in zip(theirs, ours, strict=True):
        assert gpu.memory_bytes is not None
        assert agent.pools_kib[0] == gpu.memory_bytes >> 10
        assert agent.number("Compute Unit") == 84
        assert agent.number("Chip ID") == 0x744C
        assert agent.lines["Uuid"].startswith("GPU-")


def test_amds_library_reads_the_addresses_that_the_harness_reads(
    programs: Programs, host: SimulatedHost, matrix: Matrix
) -> None:
    cards = [gpu.card for gpu in read_machine(matrix, host.root).gpus]
    buses = [int(card.address.split(":")[1], 16) for card in cards if card]
    assert [agent.number("BDFID") >> 8 for agent in gpus(programs, host)] == buses == [0x03, 0x43]


def test_amd_smi_reads_the_gpus_that_the_harness_reads(programs: Programs, host: SimulatedHost, matrix: Matrix) -> None:
    ours = read_machine(matrix, host.root).gpus
    assert re.findall(r"^ +BDF: (\S+)$", programs.amd_smi(host.root, "list"), re.MULTILINE) == [
        gpu.card.address for gpu in ours if gpu.card
    ]
    printed = programs.amd_smi(host.root, "static")
    sizes = [int(size) << 20 for size in re.findall(r"^ +SIZE: (\d+) MB$", printed, re.MULTILINE)]
    assert sizes == [gpu.facts.memory_bytes for gpu in ours]


def test_amds_library_reads_the_processor(programs: Programs, host: SimulatedHost) -> None:
    processor = agents(programs.rocminfo(host.root, driver_answers=True))[0]
    facts = read_host(host.root)
    assert (processor.lines["Device Type"], processor.number("Node")) == ("CPU", 0)
    assert processor.lines["Name"] == facts.cpu
    assert set(processor.pools_kib) == {facts.memory_bytes >> 10}


def test_a_gpu_of_another_target_and_size(programs: Programs, tmp_path: Path) -> None:
    host = with_one(tmp_path / "one", version=120001, vram=16304 << 20)
    (theirs,), (ours,) = gpus(programs, host), read_host(host.root).gpus
    assert theirs.lines["Name"] == ours.gfx == "gfx1201"
    assert theirs.pools_kib[0] << 10 == ours.memory_bytes == 16304 << 20


def with_one(root: Path, version: int, vram: int) -> SimulatedHost:
    host = with_driver(without_gpu(SimulatedHost(root)))
    host.radeon("pci0000:00/0000:00:01.1", 0x01, version=version, vram=vram)
    return host


def test_a_gpu_without_its_render_node_is_none_to_amds_library_and_a_problem_to_the_doctor(
    programs: Programs, host: SimulatedHost, matrix: Matrix
) -> None:
    host.remove("dev/dri/renderD129")
    assert len(gpus(programs, host)) == 1
    said = [
        f.what for f in examine(read_machine(matrix, host.root)) if f.check == "render-nodes" and f.level == "problem"
    ]
    assert len(said) == 1
    assert "/dev/dri/renderD129 is missing" in said[0]


def test_a_tree_without_what_amds_library_needs_is_refused_by_it(programs: Programs, host: SimulatedHost) -> None:
    for file in (
        "generation_id",
        "system_properties",
        "nodes/0/mem_banks/0/properties",
        "nodes/0/io_links/1/properties",
        "nodes/1/mem_banks/0/properties",
        "nodes/1/io_links/0/properties",
        "nodes/2/caches/2/properties",
    ):
        text = (host.root / TOPOLOGY / file).read_text()
        host.remove(TOPOLOGY / file)
        assert agents(programs.rocminfo(host.root, driver_answers=True)) == [], file
        host.write(TOPOLOGY / file, text)
    assert len(gpus(programs, host)) == 2


def links_of(programs: Programs, host: SimulatedHost) -> dict[tuple[int, int], list[dict[str, int]]]:
    printed = programs.links(host.root)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert rows, printed
    return {(row["node"], row["to"]): row["links"] for row in rows}


def test_amds_library_reads_the_links_that_are_written(programs: Programs, host: SimulatedHost) -> None:
    theirs = links_of(programs, host)
    for file in (host.root / NODES).glob("*/io_links/*/properties"):
        ours = dict(re.findall(r"^(\w+) (\d+)$", file.read_text(), re.MULTILINE))
        (link,) = theirs.pop((int(ours["node_from"]), int(ours["node_to"])))
        for name in ("min_latency", "max_latency", "min_bandwidth", "max_bandwidth"):
            assert link[name] == int(ours[name]), name
        assert (link["kind"], link["distance"]) == (PCI_EXPRESS_OF_HSA, int(ours["weight"]))
    # The two GPUs have no direct link: they reach each other through the processor.
    assert theirs == {(1, 2): [], (2, 1): []}


def test_amds_library_misses_pcie_atomics_where_the_doctor_does(
    programs: Programs, host: SimulatedHost, matrix: Matrix
) -> None:
    host.write(NODES / "2/io_links/0/properties", io_link(2, 0, flags=13))
    theirs = links_of(programs, host)
    assert [bool(theirs[node, 0][0]["atomics_64"]) for node in (1, 2)] == [True, False]
    assert [gpu.atomics for gpu in read_machine(matrix, host.root).gpus] == [True, False]
