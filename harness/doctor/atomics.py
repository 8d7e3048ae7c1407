"""Determines whether the PCIe path between a GPU and the processor supports atomic operations."""

from pathlib import Path

from harness.base.sysfs import entries, read_bytes, read_number, read_properties

# CRAT_IOLINK_FLAGS_NO_ATOMICS_32_BIT and _64_BIT of the kernel's amdkfd/kfd_crat.h.
NO_ATOMICS = 1 << 2 | 1 << 3
# PCI Express Base Specification: the offset of the pointer to the list of capabilities, the id of the PCI Express
# capability, the offset of Device Control 2 in it, and there the bit AtomicOp Requester Enable. Linux sets the bit if
# every bridge on the path can route atomics.
CAPABILITIES, EXPRESS, CONTROL_2, REQUESTER = 0x34, 0x10, 0x28, 1 << 6


def read_atomics(root: Path, kfd_id: int | None, card: Path | None) -> bool | None:
    """Return whether PCIe atomics work for a GPU, by the driver (KFD's `gpu_id`), else by its PCI configuration.

    None if neither can be read; the relevant part of the PCI configuration is readable only by root.
    """
    known = _known_to_driver(root, kfd_id)
    return known if known is not None or card is None else _set_in_configuration(card / "config")


def _known_to_driver(root: Path, kfd_id: int | None) -> bool | None:
    """Read the flags of the links from the GPU's node to those of processors, whose `gpu_id` is 0."""
    nodes = {folder.name: folder for folder in entries(root / "sys/class/kfd/kfd/topology/nodes")}
    ids = {name: read_number(folder / "gpu_id") for name, folder in nodes.items()}
    own = next((nodes[name] for name, gpu_id in ids.items() if gpu_id and gpu_id == kfd_id), None)
    if own is None:
        return None
    flags = []
    for link in entries(own / "io_links"):
        values = read_properties(link / "properties")
        if ids.get(str(values.get("node_to"))) == 0 and "flags" in values:
            flags.append(values["flags"])
    return not any(value & NO_ATOMICS for value in flags) if flags else None


def _set_in_configuration(file: Path) -> bool | None:
    """Return the requester bit of the PCI configuration.

    None if it is not readable: only root sees more than 64 bytes.
    """
    config = read_bytes(file) or b""
    place = config[CAPABILITIES] if len(config) > CAPABILITIES else 0
    seen: set[int] = set()
    while place and place + CONTROL_2 + 2 <= len(config) and place not in seen:
        seen.add(place)
        if config[place] == EXPRESS:
            control = int.from_bytes(config[place + CONTROL_2 : place + CONTROL_2 + 2], "little")
            return bool(control & REQUESTER)
        place = config[place + 1]
    return None
