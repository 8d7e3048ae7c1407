"""Tests that each finding appears when one thing of a healthy host is broken, and not before."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from inspect import isgeneratorfunction
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.base.wording import listed
from harness.campaign.planning.screen_gpus import gpus_in_question
from harness.doctor.checks import CHECKS, access, check_id, docker, driver, examine, gpus, pcie, room, slurm, system
from harness.doctor.finding import Finding, Level
from harness.doctor.machine import BaseImage, Docker, Machine, Room, SlurmHook
from harness.host.simulated_topology import io_link
from harness.matrix.load import load_matrix
from tests.harness.doctor import trees
from tests.harness.doctor.trees import GroupOwnedHost

DEFAULT = load_matrix(CHECKOUT / "matrix.yaml").select("default")
WANTED = listed(sorted({cell.stack.rocm for cell in DEFAULT if cell.stack.rocm}))

Read = Callable[[Path], Machine]
Break = Callable[[GroupOwnedHost], object]
Change = Callable[[Machine], Machine]

ENGINE = Docker(version="28.5.1", storage="overlay2", cgroups="2", bases=(BaseImage("a-base:1", here=True),))
ROOM = Room("Found 2 AMD GPUs and a Docker engine.", 50, (), "/var/lib/docker", 60, 500, 900)
NOTES = {"display", "driver-window", "what-runs"}


def healthy(machine: Machine) -> Machine:
    return replace(machine, docker=ENGINE, room=ROOM)


def worse_than_ok(findings: tuple[Finding, ...]) -> set[tuple[str, Level]]:
    return {(finding.check, finding.level) for finding in findings if finding.level != "ok"}


def both(tree: GroupOwnedHost, lanes: int) -> None:
    for gpu in tree.gpus:
        tree.width(gpu.parent.parent, lanes)


def no_iommu(tree: GroupOwnedHost) -> None:
    tree.remove("sys/class/iommu")
    tree.write("proc/cmdline", "quiet")


def without_card(tree: GroupOwnedHost, driver: str | None) -> None:
    """Give the second card to another driver, or to none, so that the amdgpu driver and KFD know nothing of it."""
    card = tree.gpus[1]
    for path in ("sys/class/kfd/kfd/topology/nodes/2", "sys/class/drm/renderD129", "dev/dri/renderD129"):
        tree.remove(path)
    tree.remove(card / "drm")
    tree.remove(card / "driver")
    if driver:
        tree.drive(card, driver)


def nobodys_reset(tree: GroupOwnedHost) -> None:
    tree.write(tree.gpus[1] / "reset", "")
    (tree.root / tree.gpus[1] / "reset").chmod(0o444)


def behind_chipset(tree: GroupOwnedHost) -> None:
    """Take the second card out of its slot, and put it into one of the chipset's."""
    card = tree.gpus[1]
    top = card.parent.parent
    slot = "pci0000:00/0000:00:02.1/0000:09:00.0/0000:0a:00.0"
    for chain in (slot.rsplit("/", 2)[0], slot.rsplit("/", 1)[0], slot):
        tree.pci(chain, 0x1022, 0x43F4, 0x060400)
    moved = tree.root / "sys/devices" / slot / top.name
    shutil.move(top, moved)
    for folder in (moved, moved / card.parent.name, moved / card.parent.name / card.name):
        tree.link(f"sys/bus/pci/devices/{folder.name}", folder)
    gpu = moved / card.parent.name / card.name
    tree.drive(gpu, "amdgpu")
    tree.link("sys/class/drm/renderD129", gpu / "drm/renderD129")
    tree.link(gpu / "drm/renderD129/device", gpu)


BREAKS: dict[str, tuple[Break, set[tuple[str, Level]], str]] = {
    "no /dev/kfd": (lambda t: t.remove("dev/kfd"), {("kfd", "problem")}, "there is no /dev/kfd"),
    "kfd is root's alone": (
        lambda t: (t.root / "dev/kfd").chmod(0o600),
        {("kfd", "problem")},
        f"uid {trees.CALLER}",
    ),
    "the caller is not in the group": (
        lambda t: t.groups(4, 27),
        {("kfd", "problem"), ("render-nodes", "problem"), ("reset", "note")},
        f"gid {trees.GROUP}",
    ),
    "a render node is missing": (
        lambda t: t.remove("dev/dri/renderD129"),
        {("render-nodes", "problem")},
        "/dev/dri/renderD129 is missing",
    ),
    "a reset that only root may ask for": (
        nobodys_reset,
        {("reset", "note")},
        "this user may not reset GPU 1 (gfx1100, 0000:43:00.0)",
    ),
    "a card that cannot be reset alone": (
        lambda t: t.remove(t.gpus[1] / "reset"),
        {("reset", "note")},
        "alone; a GPU that hangs takes no more runs until root resets it by AMD's tools (`sudo amd-smi reset "
        "--gpureset --gpu 0000:43:00.0`), which `matrix` does where root runs it, or somebody reboots",
    ),
    "a card is set aside": (lambda t: without_card(t, "vfio-pci"), {("amdgpu", "warning")}, "by the driver vfio-pci"),
    "a card has no driver": (lambda t: without_card(t, None), {("amdgpu", "problem")}, "no driver has"),
    "KFD leaves a card out": (
        lambda t: t.remove("sys/class/kfd/kfd/topology/nodes/2"),
        {("gpus", "warning")},
        "0000:43:00.0, but KFD does not list it",
    ),
    "memory that nobody holds": (
        lambda t: t.write(t.gpus[1] / "mem_info_vram_used", 6 << 30),
        {("idle-memory", "warning")},
        "6144 MiB are in use by no visible process",
    ),
    "another process computes": (
        lambda t: t.compute(4711, 51002, 2 << 30),
        {("gpu-processes", "warning")},
        "process 4711 (python3) holds 2048 MiB of GPU 1",
    ),
    "another process draws": (
        lambda t: t.draw(4711, 9, 3, t.gpus[0], 300 << 10),
        {("gpu-processes", "note")},
        "process 4711 (gnome-shell) holds 300 MiB of GPU 0",
    ),
    "a driver of long ago": (
        lambda t: t.write("sys/module/amdgpu/version", "6.2.4"),
        {("driver-window", "warning")},
        f"no ROCm that `matrix run` takes ({WANTED}) is among them",
    ),
    "an unknown driver": (
        lambda t: t.write("sys/module/amdgpu/version", "9.9.9"),
        {("driver-window", "note")},
        "amdgpu driver 9.9.9 is not in",
    ),
    "the kernel's own driver": (
        lambda t: t.remove("sys/module/amdgpu/version"),
        {("driver-window", "note")},
        "is the one of kernel 6.8.0-60-generic",
    ),
    "a kernel that failed": (
        lambda t: t.kernel("6.18.5-arch1-1"),
        {("kernel", "warning")},
        "6.18.5-arch1-1 with gfx1100 is known to fail",
    ),
    "a kernel of which both is reported": (
        lambda t: t.kernel("6.12.57+deb13-amd64"),
        {("kernel", "note")},
        "6.12.57+deb13-amd64 with gfx1100 is the maintained kernel without the page faults of 6.18",
    ),
    "no iommu=pt": (lambda t: t.write("proc/cmdline", "quiet"), {("iommu", "warning")}, "`iommu=pt` is not on"),
    "iommu=pt as part of a word": (
        lambda t: t.write("proc/cmdline", "quiet iommu=ptx"),
        {("iommu", "warning")},
        "`iommu=pt` is not on",
    ),
    "no atomics": (
        lambda t: t.write("sys/class/kfd/kfd/topology/nodes/2/io_links/0/properties", io_link(2, 0, flags=13)),
        {("pcie-atomics", "warning")},
        "GPU 1 (gfx1100, 0000:43:00.0): its slot has no PCIe atomics",
    ),
    "atomics that cannot be read": (
        lambda t: t.remove("sys/class/kfd/kfd/topology/nodes/2/io_links"),
        {("pcie-atomics", "note")},
        "unknown whether PCIe atomics work",
    ),
    "x16 and x8": (
        lambda t: t.width(t.gpus[1].parent.parent, 8),
        {("pcie-lanes", "warning")},
        "GPU 0 (gfx1100, 0000:03:00.0) x16 and GPU 1 (gfx1100, 0000:43:00.0) x8",
    ),
    "x4 and x4": (lambda t: both(t, 4), {("pcie-lanes", "warning")}, "x4 of x16 lanes"),
    "an old slot": (
        lambda t: t.write(t.gpus[0].parent.parent.parent / "max_link_speed", "8.0 GT/s PCIe"),
        {("pcie-lanes", "note")},
        "its slot does 8 GT/s, the card 16",
    ),
    "a slot of the chipset": (behind_chipset, {("pcie-slot", "warning")}, "GPU 1 (gfx1100, 0000:43:00.0) sits behind"),
    "no resizable BAR": (
        lambda t: t.bar(t.gpus[0], 256 << 20),
        {("rebar", "warning")},
        "the processor sees 0.25 GiB of its 20 GiB",
    ),
    "an old glibc": (
        lambda t: t.write(
            "usr/lib/x86_64-linux-gnu/libc.so.6", "GNU C Library (GNU libc) stable release version 2.27."
        ),
        {("glibc", "note")},
        "2.27 is older",
    ),
    "a strict glibc": (
        lambda t: t.write(
            "usr/lib/x86_64-linux-gnu/libc.so.6",
            "GNU C Library (Debian GLIBC 2.41-12+deb13u1) stable release version 2.41.",
        ),
        {("glibc", "note")},
        "2.41 refuses",
    ),
    "no glibc": (lambda t: t.remove("usr/lib/x86_64-linux-gnu/libc.so.6"), {("glibc", "note")}, "no glibc"),
    "little shared memory": (
        lambda t: t.write("proc/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0"),
        {("shared-memory", "note")},
        "/dev/shm holds 64 MiB",
    ),
    "no shared memory": (
        lambda t: t.write("proc/mounts", "sysfs /sys sysfs rw 0 0"),
        {("shared-memory", "note")},
        "is not a tmpfs",
    ),
    "a limit of locked memory": (
        lambda t: t.write("proc/self/limits", trees.LIMITS.format(limit=8388608)),
        {("locked-memory", "note")},
        "is 8 MiB",
    ),
    "ptrace is closed": (
        lambda t: t.write("proc/sys/kernel/yama/ptrace_scope", 1),
        {("ptrace", "note")},
        "ptrace_scope is 1",
    ),
    "the kernel's log is closed": (
        lambda t: t.write("etc/group", f"render:x:{trees.GROUP}:"),
        {("kernel-log", "note")},
        "cannot be read",
    ),
    "an NVIDIA card beside": (
        lambda t: t.pci("pci0000:00/0000:00:03.1/0000:07:00.0", 0x10DE, 0x2684, 0x030000),
        {("other-vendors", "note")},
        "NVIDIA GPU at 0000:07:00.0",
    ),
}

CHANGES: dict[str, tuple[Change, set[tuple[str, Level]], str]] = {
    "a disk without space for a run": (
        lambda m: replace(m, results_full="/results: no run begins with less than 1.1 GB free, and 0.1 GB are"),
        {("results-space", "problem")},
        "no run begins with less than 1.1 GB free",
    ),
    "a GPU that failed its last probe": (
        lambda m: replace(m, gpus=(m.gpus[0], replace(m.gpus[1], unhealthy="device failed"))),
        {("gpu-health", "problem")},
        "takes no runs: it failed its last probe (device failed)",
    ),
    "a Prolog of another's": (
        lambda m: replace(m, slurm_hooks=(SlurmHook("Prolog", ("/etc/slurm/other",), None),)),
        {("slurm-hooks", "warning")},
        "Slurm's Prolog is /etc/slurm/other, which runs no `matrix slurm-prolog`",
    ),
    "no Epilog": (
        lambda m: replace(m, slurm_hooks=(SlurmHook("Prolog", ("/x",), "/x"), SlurmHook("Epilog", (), None))),
        {("slurm-hooks", "warning")},
        "Slurm's Epilog is not set",
    ),
    "code that others may change": (
        lambda m: replace(m, changeable_by_others=tuple("abcd")),
        {("checkout", "note")},
        "other users may change a, b, c and more",
    ),
    "folders that another user owns": (
        lambda m: replace(m, unwritable=("/checkout/.cache", "/checkout/.cache/envs")),
        {("written-folders", "problem")},
        "may not write to /checkout/.cache and /checkout/.cache/envs",
    ),
    "an engine that refuses": (
        lambda m: replace(m, docker=Docker(refusal="not permitted: `sudo usermod -aG docker $USER`, then log in")),
        {("docker", "problem")},
        "not permitted",
    ),
    "no engine": (lambda m: replace(m, docker=Docker()), {("docker", "note")}, "there is no Docker engine"),
    "no engine, and none is wanted": (
        lambda m: replace(m, docker=Docker("process")),
        {("docker", "note")},
        "as MATRIX_EXECUTOR asks",
    ),
    "no engine, and one is wanted": (
        lambda m: replace(m, docker=Docker("docker")),
        {("docker", "problem")},
        "MATRIX_EXECUTOR asks for one",
    ),
    "a base that is nowhere": (
        lambda m: replace(m, docker=replace(ENGINE, bases=(BaseImage("b:1", here=False, unreachable="no such host"),))),
        {("base-image", "problem")},
        "b:1 is not here and cannot be pulled: no such host; no image can be built; `make base` makes one ",
    ),
    "a rootless engine": (
        lambda m: replace(m, docker=replace(ENGINE, maps_users="rootless")),
        {("docker-users", "problem")},
        "rootless",
    ),
    "an engine with userns-remap": (
        lambda m: replace(m, docker=replace(ENGINE, maps_users="userns-remap")),
        {("docker-users", "problem")},
        "userns-remap",
    ),
    "Docker Desktop": (
        lambda m: replace(m, docker=replace(ENGINE, desktop=True)),
        {("docker-desktop", "problem")},
        "Docker Desktop",
    ),
    "vfs": (
        lambda m: replace(m, docker=replace(ENGINE, storage="vfs")),
        {("docker-storage", "warning")},
        "vfs",
    ),
    "no BuildKit": (
        lambda m: replace(m, docker=replace(ENGINE, no_builder="no docker command that drives BuildKit")),
        {("docker-builder", "problem")},
        "BuildKit",
    ),
    "control groups of version 1": (
        lambda m: replace(m, docker=replace(ENGINE, cgroups="1")),
        {("cgroups", "note")},
        "version 1",
    ),
    "a full disk": (
        lambda m: replace(m, room=replace(ROOM, free_gb=19.0, needed_gb=0.0, no_room=("a (20 GB)", "b (30 GB)"))),
        {("disk-space", "problem")},
        "19 GB are free, and no stack that `matrix run` takes has room: a (20 GB), b (30 GB)",
    ),
    "a disk for some stacks": (
        lambda m: replace(m, room=replace(ROOM, free_gb=65.0, no_room=("b (30 GB)",))),
        {("disk-space", "note")},
        "take 60 GB at most; no room beside those for: b (30 GB)",
    ),
    "cells of stacks without room": (
        lambda m: replace(m, room=replace(ROOM, free_gb=65.0, no_room=("b (30 GB)",))),
        {("disk-space", "note"), ("what-runs", "note")},
        "that `matrix run` takes can run here, but for those of 1 stack without room; `matrix plan` lists",
    ),
    "a slow disk": (lambda m: replace(m, room=replace(ROOM, write_speed=12.0)), {("disk-speed", "warning")}, "12 MB/s"),
    "nothing that can run": (
        lambda m: replace(m, room=replace(ROOM, cells=0, left_out=("install it: `uv python install 3.11`",))),
        {("what-runs", "problem")},
        "install it",
    ),
}


def test_a_healthy_host_has_nothing_but_notes(read: Read, tmp_path: Path) -> None:
    trees.dual_7900xt(tmp_path)
    assert worse_than_ok(examine(healthy(read(tmp_path)))) == {(check, "note") for check in NOTES}


@pytest.mark.parametrize("name", [*BREAKS, *CHANGES])
def test_what_is_wrong_is_found_and_nothing_else_with_a_command_that_a_shell_can_read(
    name: str, read: Read, tmp_path: Path
) -> None:
    tree = trees.dual_7900xt(tmp_path)
    change, expected, told = BREAKS.get(name) or (lambda _: None, *CHANGES[name][1:])
    change(tree)
    machine = healthy(read(tmp_path))
    findings = examine(CHANGES[name][0](machine) if name in CHANGES else machine)
    of_expected = {check for check, _ in expected}
    assert {one for one in worse_than_ok(findings) if one[0] in of_expected} == expected
    assert {check for check, _ in worse_than_ok(findings)} - of_expected <= NOTES
    assert any(told in f"{f.what}; {f.why}" for f in findings if (f.check, f.level) in expected)
    for fix in (finding.fix for finding in findings if finding.fix):
        # A fix is one command, and says if it only holds in this shell.
        assert "export " not in fix or fix.endswith("  # holds in this shell")
        assert "\n" not in fix
        assert can_be_read(fix), fix


@cache
def can_be_read(command: str) -> bool:
    """Return whether a shell can parse a command; most findings are those of a healthy host, so answers are cached."""
    return subprocess.run(["/bin/bash", "-n", "-c", command], check=False).returncode == 0


@pytest.mark.parametrize("make", [trees.none, trees.dual_7900xt, trees.with_igpu, trees.wsl2, trees.nvidia])
def test_every_finding_says_why_and_warnings_say_what_to_do(
    make: Callable[[Path], GroupOwnedHost], read: Read, tmp_path: Path
) -> None:
    make(tmp_path)
    for finding in examine(healthy(read(tmp_path))):
        assert finding.what
        assert finding.level == "ok" or finding.why
        assert finding.level in {"ok", "note"} or finding.fix


def only(findings: tuple[Finding, ...], check: str) -> Finding:
    [finding] = [f for f in findings if f.check == check]
    return finding


def test_two_slots_with_eight_lanes_each_are_what_amd_supports(read: Read, tmp_path: Path) -> None:
    both(trees.dual_7900xt(tmp_path), 8)
    assert {f.level for f in examine(read(tmp_path)) if f.check == "pcie-lanes"} == {"ok"}


def test_one_card_in_a_slot_of_eight_lanes_is_slower_than_it_could_be(read: Read, tmp_path: Path) -> None:
    tree = trees.rx_9070xt(tmp_path)
    tree.width(tree.gpus[0].parent.parent, 8)
    assert only(examine(read(tmp_path)), "pcie-lanes").level == "warning"


def test_an_idle_link_is_no_fault(read: Read, tmp_path: Path) -> None:
    tree = trees.rx_9070xt(tmp_path)
    tree.width(tree.gpus[0].parent.parent, 16, speed="2.5")
    found = only(examine(read(tmp_path)), "pcie-lanes")
    assert (found.level, "now at 2.5 of 16 GT/s (an idle link is slow)" in found.what) == ("ok", True)


@pytest.mark.parametrize("words", ["quiet", "quiet amd_iommu=off"])
def test_without_an_iommu_nothing_is_asked_of_the_command_line(words: str, read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.write("proc/cmdline", words)
    if words == "quiet":
        tree.remove("sys/class/iommu")
    assert only(examine(read(tmp_path)), "iommu").level == "ok"


def test_with_one_gpu_iommu_pt_is_a_note(read: Read, tmp_path: Path) -> None:
    tree = trees.rx_9070xt(tmp_path)
    tree.link("sys/class/iommu/ivhd0", tmp_path)
    tree.write("proc/cmdline", "quiet")
    assert only(examine(read(tmp_path)), "iommu").level == "note"


def test_the_command_that_adds_iommu_pt_does(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.write("proc/cmdline", "quiet")
    grub = tmp_path / "grub"
    grub.write_text('GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\nGRUB_CMDLINE_LINUX=""\n')
    fix = only(examine(read(tmp_path)), "iommu").fix or ""
    edit = fix.split(" && ")[0].removeprefix("sudo ").replace("/etc/default/grub", str(grub))
    subprocess.run(["/bin/bash", "-c", f"PATH=/usr/bin:/bin; {edit}"], check=True)
    assert 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt quiet splash"\nGRUB_CMDLINE_LINUX=""' in grub.read_text()
    assert "sudo update-grub" in fix
    # As on Arch Linux, Pop!_OS and Fedora, which lack it.
    for tool, command in (
        ("usr/bin/grub-mkconfig", "/etc/default/grub && sudo grub-mkconfig -o /boot/grub/grub.cfg"),
        ("usr/bin/kernelstub", "sudo kernelstub --add-options iommu=pt"),
        ("usr/sbin/grubby", "sudo grubby --update-kernel=ALL --args=iommu=pt"),
    ):
        tree.write(tool, "")
        assert f"{command}  # then reboot" in (only(examine(read(tmp_path)), "iommu").fix or "")
    tree.remove("usr/bin/kernelstub")
    tree.remove("usr/sbin/grubby")
    tree.write("usr/sbin/update-grub", "")
    assert only(examine(read(tmp_path)), "iommu").fix == fix


def test_memory_of_a_process_that_is_seen_is_reported_once(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.write(tree.gpus[1] / "mem_info_vram_used", (2 << 30) + (27 << 20))
    tree.compute(4711, 51002, 2 << 30)
    findings = examine(read(tmp_path))
    assert only(findings, "gpu-processes").level == "warning"
    assert only(findings, "gpu-processes").fix == "kill 4711  # or wait until it ends"
    assert only(findings, "idle-memory").level == "ok"
    tree.remove("proc/4711/comm")
    ended = only(examine(read(tmp_path)), "gpu-processes")
    assert ended.what.startswith("process 4711 (ended) holds 2048 MiB")
    assert ended.fix == "sudo reboot  # only if that memory is not free within a minute"


def test_an_integrated_gpu_is_found_with_the_way_to_hide_it(read: Read, tmp_path: Path) -> None:
    trees.with_igpu(tmp_path)
    findings = examine(read(tmp_path))
    assert {f.check for f in findings if f.level in {"warning", "problem"}} == {"integrated-gpu"}
    found = only(findings, "integrated-gpu")
    assert "GPU 2 (gfx1036, 0000:11:00.0)" in found.what
    assert found.fix == "export ROCR_VISIBLE_DEVICES=0,1  # holds in this shell"


def test_an_integrated_gpu_alone_trains_nothing(read: Read, tmp_path: Path) -> None:
    tree = trees.with_igpu(tmp_path)
    for number in (1, 2):
        tree.remove(f"sys/class/kfd/kfd/topology/nodes/{number}")
    found = only(examine(read(tmp_path)), "integrated-gpu")
    assert (found.level, "there is no other GPU" in found.what) == ("warning", True)


def test_gfx1201_needs_newer_wheels(read: Read, tmp_path: Path) -> None:
    trees.rx_9070xt(tmp_path)
    findings = examine(read(tmp_path))
    assert {f.check for f in findings if f.level in {"warning", "problem"}} == {"gpu-targets"}
    found = only(findings, "gpu-targets")
    assert "the wheels of ROCm 6.2 and 6.3 have no kernels for gfx1201" in found.what
    assert found.fix == ".venv/bin/matrix run rocm7.0-torch2.10.0-plain"


def test_wsl2_is_recognised_and_its_page_named(read: Read, tmp_path: Path) -> None:
    tree = trees.wsl2(tmp_path)
    findings = examine(read(tmp_path))
    assert {f.check for f in findings if f.level in {"warning", "problem"}} == {"wsl"}
    found = only(findings, "wsl")
    assert "only one GPU can be used" in found.why
    assert "docs/doctor.md#wsl2" in found.why
    assert not any(f.check == "gpus" for f in findings)
    tree.remove("usr/lib/wsl/lib/libdxcore.so")
    assert "libdxcore.so is missing" in only(examine(read(tmp_path)), "wsl").what
    tree.remove("dev/dxg")
    assert "without /dev/dxg" in only(examine(read(tmp_path)), "wsl").what
    tree.kernel("4.4.0-19041-Microsoft")
    assert only(examine(read(tmp_path)), "wsl").level == "problem"


def test_a_host_whose_only_gpu_is_left_out_by_kfd_has_a_problem(read: Read, tmp_path: Path) -> None:
    trees.rx_9070xt(tmp_path).remove("sys/class/kfd/kfd/topology/nodes/1")
    assert only(examine(read(tmp_path)), "gpus").level == "problem"


def test_an_nvidia_host_has_no_gpu_for_the_matrix(read: Read, tmp_path: Path) -> None:
    trees.nvidia(tmp_path)
    assert worse_than_ok(examine(read(tmp_path))) == {("gpus", "note"), ("other-vendors", "note")}


def test_a_host_without_a_gpu_can_run_cpu_cells(read: Read, tmp_path: Path) -> None:
    trees.none(tmp_path)
    findings = examine(read(tmp_path))
    assert worse_than_ok(findings) == {("gpus", "note")}
    assert "cpu stack can run" in only(findings, "gpus").why


def test_docker_desktop_without_a_gpu_is_a_note(read: Read, tmp_path: Path) -> None:
    trees.none(tmp_path)
    found = only(examine(replace(read(tmp_path), docker=replace(ENGINE, desktop=True))), "docker-desktop")
    assert found.level == "note"


def test_root_may_open_everything(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    (tmp_path / "dev/kfd").chmod(0o000)
    tree.groups(uid=0)
    assert only(examine(read(tmp_path)), "kfd").level == "ok"


def test_a_group_without_a_name_is_given_one(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.groups(4)
    tree.write("etc/group", "adm:x:4:")
    kfd = read(tmp_path).kfd
    assert kfd is not None
    # The group is given a name, except for root's own group, which nobody should join.
    machine = replace(read(tmp_path), kfd=replace(kfd, group=109))
    fix = only(examine(machine), "kfd").fix
    assert fix == "sudo groupadd -g 109 render && sudo usermod -aG render $USER  # then log in again"
    assert "usermod" not in (only(examine(replace(machine, kfd=replace(kfd, group=0))), "kfd").fix or "")


@pytest.mark.parametrize(
    ("module", "unknown", "outside"),
    [
        ("6.16.13", "7.14.0, 10.0.0 and 10.1.0", "5.7, 6.0, 6.1, 6.2 and 6.2.4"),
        ("6.19.14", "10.0.0 and 10.1.0", "5.7, 6.0, 6.1, 6.2, 6.2.4, 6.3 and 6.4"),
    ],
)
def test_rocm_later_than_the_table_of_drivers_is_not_called_unsupported(
    module: str, unknown: str, outside: str, read: Read, tmp_path: Path
) -> None:
    tree = trees.dual_7900xt(tmp_path)
    tree.write("sys/module/amdgpu/version", module)
    found = only(examine(read(tmp_path)), "driver-window")
    assert f"(nothing is known of ROCm {unknown} of the matrix); ROCm {outside} of the matrix are outside" in found.what


def test_what_only_cells_as_processes_need_is_a_note_where_they_run_in_containers(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    trixie = "GNU C Library (Debian GLIBC 2.41-12+deb13u1) stable release version 2.41."
    tree.write("usr/lib/x86_64-linux-gnu/libc.so.6", trixie)
    tree.write("proc/mounts", "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0")
    machine = read(tmp_path)
    for engine, level in (
        (ENGINE, "note"),
        (replace(ENGINE, maps_users="rootless"), "warning"),
        (Docker("process"), "warning"),
        (Docker(), "warning"),
    ):
        found = examine(replace(machine, docker=engine))
        told = {one.check: one.level for one in found if one.check in ("glibc", "shared-memory")}
        assert told == {"glibc": level, "shared-memory": level}


def test_the_display_is_noted_only_where_there_is_one(read: Read, tmp_path: Path) -> None:
    tree = trees.dual_7900xt(tmp_path)
    told = [(f.level, f.what) for f in examine(read(tmp_path)) if f.check == "display"]
    assert told == [
        ("note", "GPU 0 (gfx1100, 0000:03:00.0) has a screen (DP-1), 812 MiB in use"),
        ("ok", "GPU 1 (gfx1100, 0000:43:00.0) has no screen, 27 MiB in use"),
    ]
    [why] = [f.why for f in examine(read(tmp_path)) if f.level == "note" and f.check == "display"]
    assert "what trains on all GPUs stays unknown, without --use-screen-gpu" in why
    # With a screen on each GPU a campaign leaves none out.
    shown = read(tmp_path)
    gpus = tuple(replace(gpu, facts=gpu.facts.model_copy(update={"displays": ("DP-1",)})) for gpu in shown.gpus)
    whys = [f.why for f in examine(replace(shown, gpus=gpus)) if f.check == "display"]
    assert len(whys) == 2
    assert not any("stays unknown" in (why or "") for why in whys)
    # A screen that is asleep counts, too: a campaign leaves its GPU out, and the GPU is not reset.
    tree.write(tree.gpus[0] / "drm/card0/card0-DP-1/enabled", "disabled")
    asleep = read(tmp_path)
    assert [f.level for f in examine(asleep) if f.check == "display"] == ["note", "ok"]
    assert [gpu.index for gpu in gpus_in_question(asleep.host)] == [0]
    # Its desktop holds memory meanwhile, as no process that this user sees.
    assert [f.what for f in examine(asleep) if f.check == "idle-memory" and f.level != "ok"] == []


def test_every_check_was_made_to_find_something() -> None:
    broken = {check for _, expected, _ in (*BREAKS.values(), *CHANGES.values()) for check, _ in expected}
    elsewhere = {"wsl", "integrated-gpu", "gpu-targets", "display"}
    assert broken | elsewhere == {check_id(check) for check in CHECKS}


def test_every_check_that_is_written_is_made() -> None:
    written = {
        function
        for module in (access, docker, driver, gpus, pcie, room, slurm, system)
        for name, function in vars(module).items()
        if isgeneratorfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert written == set(CHECKS)
    files = {file.stem for file in Path(access.__file__).parent.glob("[!_]*.py")}
    assert files == {check.__module__.rpartition(".")[2] for check in CHECKS}


def test_results_that_are_shared_in_the_checkout_stay_shared(read: Read, tmp_path: Path) -> None:
    trees.dual_7900xt(tmp_path)
    machine = replace(read(tmp_path), changeable_by_others=(str(CHECKOUT), "/with space"))
    (found,) = system.checkout(machine)
    assert found.fix == (
        f"sudo chmod go-w {CHECKOUT} && sudo chown -R --reference={CHECKOUT} '/with space' "
        "&& sudo chmod -R go-w '/with space'"
    )
