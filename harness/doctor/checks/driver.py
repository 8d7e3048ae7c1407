"""The amdgpu driver, and the kernel that it belongs to."""

from collections.abc import Iterator

from harness.base.wording import listed
from harness.doctor.compatibility import kernel_report, window_of
from harness.doctor.finding import Finding, note, ok, problem, warning
from harness.doctor.machine import Machine


def amdgpu(machine: Machine) -> Iterator[Finding]:
    """The driver of each AMD card."""
    for card in machine.amd_cards:
        if card.driver == "amdgpu":
            yield ok(f"the amdgpu driver has the AMD card at {card.address}")
        elif card.driver:
            yield warning(
                f"the AMD card at {card.address} is held by the driver {card.driver}, not by amdgpu",
                "it is reserved for a virtual machine or an older driver, and ROCm cannot see it",
                f"cd /sys/bus/pci/drivers && echo {card.address} | sudo tee {card.driver}/unbind amdgpu/bind",
            )
        else:
            yield problem(
                f"no driver has the AMD card at {card.address}",
                "ROCm reaches a GPU only through the amdgpu driver of the kernel",
                "sudo modprobe amdgpu  # then `sudo dmesg | grep amdgpu` where that did not help",
            )


def driver_window(machine: Machine) -> Iterator[Finding]:
    """The version of the amdgpu driver, and the ROCm versions that AMD supports with it."""
    module = machine.host.driver
    if module is None or not machine.rocm.stacks:
        return
    why = (
        "AMD supports a driver with the ROCm versions of about a year around it; a failure outside says little of ROCm"
    )
    if module == "in-tree":
        yield note(
            f"the amdgpu driver is the one of kernel {machine.host.kernel}",
            "it usually works, but AMD tests ROCm with the driver of its own packages (amdgpu-dkms), so the supported "
            "versions are unknown; records distinguish the two drivers",
        )
        return
    window = window_of(module)
    if window is None:
        yield note(
            f"amdgpu driver {module} is not in harness/doctor/compatibility.yaml",
            f"{why}; for this driver the versions are unknown",
        )
        return
    versions = machine.rocm.versions()
    outside = [rocm for rocm in versions if window.excludes(rocm)]
    unknown = [rocm for rocm in versions if not window.holds(rocm) and not window.excludes(rocm)]
    what = window.in_words
    if unknown:
        what += f" (nothing is known of ROCm {listed(unknown)} of the matrix)"
    if not outside:
        yield ok(what)
    elif any(map(window.holds, machine.rocm.default)):
        are = "is" if len(outside) == 1 else "are"
        yield note(f"{what}; ROCm {listed(outside)} of the matrix {are} outside", why)
    else:
        stack = next((name for rocm, name in machine.rocm.stacks if window.holds(rocm)), None)
        yield warning(
            f"{what}; no ROCm that `matrix run` takes ({listed(sorted(machine.rocm.default))}) is among them",
            why,
            f".venv/bin/matrix run {stack}-plain" if stack else "sudo apt install --only-upgrade amdgpu-dkms",
        )


def kernel(machine: Machine) -> Iterator[Finding]:
    """Known failures of this kernel with these GPUs."""
    targets = list(dict.fromkeys(gpu.facts.gfx for gpu in machine.training))
    known = [(gfx, report) for gfx in targets if (report := kernel_report(machine.host.kernel, gfx))]
    for gfx, report in known:
        what = f"kernel {machine.host.kernel} with {gfx} {report.what}"
        if report.fails and report.fix:
            yield warning(what, report.seen, report.fix)
        else:
            yield note(what, report.seen)
    if targets and not known:
        yield ok(f"no failure of kernel {machine.host.kernel} with {listed(targets)} is known")
