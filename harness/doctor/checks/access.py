"""Access to the device nodes."""

from collections.abc import Iterator

from harness.doctor.finding import Finding, note, ok, problem
from harness.doctor.machine import Machine, Node


def kfd(machine: Machine) -> Iterator[Finding]:
    """/dev/kfd: its presence, its numeric group, and this user's access."""
    node = machine.kfd
    if node:
        yield _usable(machine, node)
    elif any(card.driver == "amdgpu" for card in machine.amd_cards):
        yield problem(
            "there is no /dev/kfd, though the amdgpu driver is loaded",
            "every ROCm program opens it first; without it there is no GPU (`no ROCm-capable device is detected`)",
            "zgrep -h HSA_AMD /boot/config-$(uname -r) /proc/config.gz  # must say =y; else boot another kernel",
        )


def render_nodes(machine: Machine) -> Iterator[Finding]:
    """The render node of each GPU: its presence, its numeric group, and this user's access."""
    nodes = {node.path: node for node in machine.render_nodes}
    for gpu in machine.training:
        path = gpu.facts.render_node
        if path in nodes:
            yield _usable(machine, nodes[path])
        else:
            yield problem(
                f"{gpu.label} has no render node{f': {path} is missing' if path else ''}",
                "ROCm allocates memory through it, and containers are given no other node of a GPU",
                "sudo udevadm trigger --subsystem-match=drm --action=add",
            )


def reset(machine: Machine) -> Iterator[Finding]:
    """Permission of this user to reset each GPU after a hang."""
    for gpu in machine.training:
        if gpu.resettable:
            yield ok(f"this user may reset {gpu.label}")
        elif gpu.resettable is False and gpu.card:
            file = f"/sys/bus/pci/devices/{gpu.card.address}/reset"
            yield note(
                f"this user may not reset {gpu.label}",
                "a GPU that hangs takes no more runs until somebody resets it or reboots",
                f"sudo chgrp render {file} && sudo chmod g+w {file}  # until the next boot; for members of render",
            )
        elif gpu.card:
            yield note(
                f"the kernel has no reset of {gpu.label} alone",
                "a GPU that hangs takes no more runs until root resets it by AMD's tools (`sudo amd-smi reset "
                f"--gpureset --gpu {gpu.card.address}`), which `matrix` does where root runs it, or somebody reboots",
            )


def _usable(machine: Machine, node: Node) -> Finding:
    if node.usable:
        return ok(f"this user may open {node.sentence}")
    groups = ", ".join(map(str, sorted(machine.caller.groups)))
    name = node.group_name or "render"
    join = f"sudo usermod -aG {name} $USER  # then log in again"
    no_name = f"sudo groupadd -g {node.group} render && " if node.group_name is None else ""
    # A node of group root was created before the udev rules that assign its group were installed.
    fix = "sudo udevadm trigger --action=add" if node.group == 0 else no_name + join
    return problem(
        f"this user (uid {machine.caller.uid}, groups {groups or 'none'}) may not open {node.sentence}",
        "ROCm finds no GPU then (`Unable to open /dev/kfd read-write`, `No HIP GPUs are available`); in a container "
        "the number of the group counts, not its name",
        fix,
    )
