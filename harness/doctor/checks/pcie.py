"""The PCIe connection of the GPUs.

AMD asks for slots of the processor, equal lanes and PCIe atomics where several Radeons work together:
https://rocm.docs.amd.com/projects/radeon/en/docs-6.4.1/docs/install/native_linux/mgpu.html
"""

from collections.abc import Iterator

from harness.base.wording import listed
from harness.doctor.finding import Finding, note, ok, warning
from harness.doctor.machine import HostGpu, Link, Machine

FIRMWARE = "sudo systemctl reboot --firmware-setup"
# Fewest acceptable lanes: with fewer, not even the x8+x8 that AMD asks for is reached.
FEWEST_LANES = 8
NO_IOMMU = frozenset({"iommu=off", "amd_iommu=off", "intel_iommu=off"})
GIB = 1 << 30


def iommu(machine: Machine) -> Iterator[Finding]:
    """`iommu=pt` on the kernel's command line, if an IOMMU is active."""
    if not machine.training:
        return
    if "iommu=pt" in machine.boot_words:
        yield ok("iommu=pt is on the kernel's command line")
    elif not machine.iommu or NO_IOMMU & set(machine.boot_words):
        yield ok("no IOMMU is active, so `iommu=pt` is not needed")
    else:
        several = len(machine.training) > 1
        what = "an IOMMU is active, and `iommu=pt` is not on the kernel's command line"
        why = "without it, collectives of several GPUs hang on some hosts, and RCCL warns about it"
        fix = f"{machine.boot_tool.format('iommu=pt')}  # then reboot"
        yield warning(what, why, fix) if several else note(what, f"{why}; with one GPU it matters less", fix)


def pcie_atomics(machine: Machine) -> Iterator[Finding]:
    """PCIe atomics between each GPU and the processor."""
    for gpu in machine.training:
        if gpu.atomics:
            yield ok(f"{gpu.label}: PCIe atomics work")
        elif gpu.atomics is None:
            yield note(
                f"{gpu.label}: unknown whether PCIe atomics work",
                "neither KFD's links nor the PCI configuration show them to this user; collectives need them",
                "sudo .venv/bin/matrix doctor",
            )
        else:
            yield warning(
                f"{gpu.label}: its slot has no PCIe atomics",
                "kernels that call the host fail (`the operation cannot be performed in the present state`), and so "
                "does every collective of an RCCL that needs them (https://github.com/ROCm/ROCm/issues/6074); "
                "put the card into a slot of the processor",
                "sudo poweroff",
            )


def pcie_lanes(machine: Machine) -> Iterator[Finding]:
    """The lanes and the speed of each GPU's slot, compared with the card's and with the other slots."""
    links = [(gpu, gpu.card.link) for gpu in machine.training if gpu.card and gpu.card.link]
    widths = sorted({link.lanes for _, link in links}, reverse=True)
    if len(widths) > 1:
        yield warning(
            f"the GPUs have unequal slots: {listed(f'{gpu.label} x{link.lanes}' for gpu, link in links)}",
            "AMD asks for equal lanes (x16+x16 or x8+x8) where several Radeons work together; collectives run at the "
            "pace of the narrowest",
            f"{FIRMWARE}  # PCIe bifurcation x8/x8, or other slots",
        )
    for gpu, link in links:
        yield from _narrow(gpu, link, equal=len(links) > 1 and len(widths) == 1)
        if link.slot_speed and link.most_speed and link.slot_speed < link.most_speed:
            yield note(
                f"{gpu.label}: its slot does {link.slot_speed:g} GT/s, the card {link.most_speed:g}",
                "copies between host and GPU take longer; an older board, or its firmware, limits the speed",
                f"{FIRMWARE}  # PCIe speed of the slot: auto",
            )


def _narrow(gpu: HostGpu, link: Link, *, equal: bool) -> Iterator[Finding]:
    what = f"{gpu.label}: x{link.lanes} of x{link.most_lanes} lanes"
    if link.speed and link.most_speed:
        idle = " (an idle link is slow)" if link.speed < link.most_speed else ""
        what += f", now at {link.speed:g} of {link.most_speed:g} GT/s{idle}"
    if link.lanes == link.most_lanes or (equal and link.lanes >= FEWEST_LANES):
        yield ok(what)
    else:
        yield warning(
            what,
            "copies between host and GPU take longer; the slot has fewer lanes, or the card is not seated well",
            f"sudo lspci -vv -s {gpu.card.address if gpu.card else ''} | grep LnkSta  # run it while the GPU computes",
        )


def pcie_slot(machine: Machine) -> Iterator[Finding]:
    """The slot of each GPU: of the processor, or of the chipset."""
    for gpu in machine.training:
        if gpu.card and gpu.card.link and gpu.card.bridges == 0:
            yield ok(f"{gpu.label} sits in a slot of the processor")
        elif gpu.card and gpu.card.link:
            why = "such slots share their lanes, and many have no PCIe atomics; AMD asks for slots of the processor"
            what = f"{gpu.label} sits behind {gpu.card.bridges} more bridges, as in a slot of the chipset"
            several = len(machine.training) > 1
            yield warning(what, why, "sudo poweroff  # other slot") if several else note(what, why)


def rebar(machine: Machine) -> Iterator[Finding]:
    """The part of each GPU's memory that the processor can address (Resizable BAR)."""
    for gpu in machine.training:
        if gpu.card is None or gpu.card.window is None or gpu.card.memory is None:
            continue
        if gpu.card.window >= gpu.card.memory:
            yield ok(f"{gpu.label}: the processor sees all of its memory")
            continue
        window, memory = gpu.card.window / GIB, gpu.card.memory / GIB
        yield warning(
            f"{gpu.label}: the processor sees {window:.2f} GiB of its {memory:.0f} GiB",
            "Resizable BAR is off: GPUs cannot reach each other's memory, and copies take a detour",
            f"{FIRMWARE}  # switch on Above 4G Decoding and Resizable BAR",
        )
