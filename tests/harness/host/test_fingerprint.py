from pathlib import Path

import pytest

from harness.base.files.hashes import json_hash
from harness.base.sysfs import REAL_ROOT
from harness.host import fingerprint
from harness.host.facts import HostFacts
from harness.host.fingerprint import gfx_target, machine_of, read_host, training_gpus

NODE = "simd_count {simd}\ngfx_target_version {gfx}\ndrm_render_minor {minor}\n"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def dual_7900xt(tmp_path: Path) -> Path:
    """Return a tree that shows, as the driver does, two RX 7900 XT with a Ryzen's integrated GPU between them."""
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, (simd, gfx, minor) in enumerate([(0, 0, 0), (168, 110000, 128), (4, 100306, 129), (168, 110000, 130)]):
        write(nodes / str(number) / "properties", NODE.format(simd=simd, gfx=gfx, minor=minor))
    for minor in (128, 130):
        write(tmp_path / f"sys/class/drm/renderD{minor}/device/mem_info_vram_total", f"{20464 << 20}\n")
    write(tmp_path / "sys/module/amdgpu/version", "6.10.5\n")
    write(tmp_path / "proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
    write(tmp_path / "etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n')
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Ryzen 9 7950X\n")
    write(tmp_path / "proc/meminfo", "MemTotal:       65536000 kB\n")
    return tmp_path


def test_gpus_are_counted_as_rocm_counts_them(dual_7900xt: Path) -> None:
    host = read_host(dual_7900xt)
    assert [(gpu.index, gpu.gfx, gpu.render_node) for gpu in host.gpus] == [
        (0, "gfx1100", "/dev/dri/renderD128"),
        (1, "gfx1036", "/dev/dri/renderD129"),
        (2, "gfx1100", "/dev/dri/renderD130"),
    ]
    assert [gpu.index for gpu in training_gpus(host)] == [0, 2]
    assert host.gpus[0].memory_bytes == 20464 << 20
    assert host.gpus[1].memory_bytes is None


def test_gpus_of_many_nodes_are_counted_in_the_order_of_numbers(dual_7900xt: Path) -> None:
    nodes = dual_7900xt / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "1").rename(nodes / "10")
    assert [gpu.render_node for gpu in read_host(dual_7900xt).gpus] == [
        "/dev/dri/renderD129",
        "/dev/dri/renderD130",
        "/dev/dri/renderD128",
    ]


def test_a_gpu_has_the_address_by_which_the_kernel_names_it(dual_7900xt: Path) -> None:
    write(dual_7900xt / "sys/class/drm/renderD130/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:0A:00.0\n")
    before = read_host(dual_7900xt)
    assert [gpu.address for gpu in before.gpus] == [None, None, "0000:0a:00.0"]
    # Another slot makes it no other host.
    write(dual_7900xt / "sys/class/drm/renderD130/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:43:00.0\n")
    assert read_host(dual_7900xt).fingerprint == before.fingerprint


def test_what_the_kernel_calls_every_new_gpu_is_no_name(dual_7900xt: Path) -> None:
    nodes = dual_7900xt / "sys/class/kfd/kfd/topology/nodes"
    write(nodes / "1/name", "ip discovery\n")
    write(nodes / "2/name", "vega20\n")
    assert [gpu.name for gpu in read_host(dual_7900xt).gpus] == ["AMD GPU", "vega20", "AMD GPU"]


def test_what_no_kernel_says_of_a_gpu_is_passed_over(dual_7900xt: Path) -> None:
    """A simulated host is written by hand."""
    nodes = dual_7900xt / "sys/class/kfd/kfd/topology/nodes"
    before = read_host(dual_7900xt).gpus
    write(nodes / "1/gpu_id", "x\n")
    write(nodes / "x/properties", "simd_count 1\n")
    write(nodes / "7/properties", f"simd_count {'9' * 5000}\n")
    assert read_host(dual_7900xt).gpus == before


def test_the_rest_of_the_host(dual_7900xt: Path) -> None:
    host = read_host(dual_7900xt)
    assert (host.operating_system, host.kernel, host.driver) == ("Ubuntu 24.04.2 LTS", "6.8.0-60-generic", "6.10.5")
    assert (host.cpu, host.memory_bytes) == ("AMD Ryzen 9 7950X", 65536000 * 1024)


def test_the_kind_of_a_host_is_gpus_driver_and_kernel(dual_7900xt: Path) -> None:
    before = read_host(dual_7900xt)
    write(dual_7900xt / "proc/meminfo", "MemTotal:       32768000 kB\n")
    more_memory = read_host(dual_7900xt)
    assert more_memory.kind == before.kind
    assert more_memory.fingerprint != before.fingerprint
    write(dual_7900xt / "sys/module/amdgpu/version", "6.12.12\n")
    assert read_host(dual_7900xt).kind != before.kind


def test_a_boot_that_leaves_some_more_or_less_memory_makes_it_no_other_host(dual_7900xt: Path) -> None:
    """Otherwise a campaign would not continue after a reboot or a power cut, but begin again."""
    before = read_host(dual_7900xt)
    for memory in (65536000 - 2148, 65536000 + 36):
        write(dual_7900xt / "proc/meminfo", f"MemTotal:       {memory} kB\n")
        after = read_host(dual_7900xt)
        assert after.memory_bytes != before.memory_bytes
        assert after.fingerprint == before.fingerprint


def test_firmware_that_computing_depends_on_makes_another_kind_and_vbios_does_not(dual_7900xt: Path) -> None:
    card = dual_7900xt / "sys/class/drm/renderD130/device"
    kinds = [read_host(dual_7900xt).kind]
    for block, version in (("mes", "0x80"), ("mes", "0x83"), ("smc", "0x4e8200"), ("sdma", "0x16"), ("mec", "0x236")):
        write(card / f"fw_version/{block}_fw_version", f"{version}\n")
        host = read_host(dual_7900xt)
        assert host.gpus[2].firmware[block] == version
        kinds.append(host.kind)
    assert len(set(kinds)) == len(kinds)
    write(card / "fw_version/vcn_fw_version", "0x1\n")
    write(card / "vbios_version", "113-EXT85837-100\n")
    host = read_host(dual_7900xt)
    assert host.kind == kinds[-1]
    assert host.gpus[2].vbios == "113-EXT85837-100"


def test_parameters_of_kernel_and_driver_are_reported_however_they_were_set(dual_7900xt: Path) -> None:
    write(dual_7900xt / "proc/cmdline", "ro quiet splash iommu=pt amd_iommu=on pci=noats root=UUID=1")
    write(dual_7900xt / "sys/module/amdgpu/parameters/gpu_recovery", "1\n")
    write(dual_7900xt / "sys/module/amdgpu/parameters/si_support", "0\n")
    found = read_host(dual_7900xt).kernel_parameters
    assert found == {"iommu": "pt", "amd_iommu": "on", "pci": "noats", "amdgpu.gpu_recovery": "1"}


def test_a_simulated_host_is_never_a_real_one(dual_7900xt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = read_host(dual_7900xt)
    monkeypatch.setattr(fingerprint, "is_simulated", lambda _: False)
    real = read_host(dual_7900xt)
    assert (simulated.simulated, real.simulated) == (True, False)
    differ = {name for name in HostFacts.model_fields if getattr(simulated, name) != getattr(real, name)}
    assert differ == {"simulated", "kind", "fingerprint", "machine"}


def test_the_kinds_of_real_hosts_stay_what_records_name() -> None:
    host = read_host(REAL_ROOT)
    kind = {"gpus": sorted(gpu.gfx for gpu in host.gpus), "driver": host.driver, "kernel": host.kernel}
    assert host.kind == json_hash(kind)[:16]
    assert host.machine == machine_of(REAL_ROOT)


def test_the_driver_of_the_kernel_tree_has_no_version(dual_7900xt: Path) -> None:
    (dual_7900xt / "sys/module/amdgpu/version").unlink()
    assert read_host(dual_7900xt).driver == "in-tree"


def test_a_host_without_anything(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert (host.gpus, host.driver, host.operating_system) == ((), None, "unknown")


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (110000, "gfx1100"),
        (100306, "gfx1036"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (120001, "gfx1201"),
        (90006, "gfx906"),
    ],
)
def test_names_of_targets(version: int, name: str) -> None:
    assert gfx_target(version) == name
