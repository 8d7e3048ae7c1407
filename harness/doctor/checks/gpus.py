"""The GPUs, their targets, and the processes that use them."""

from collections.abc import Iterator

from harness.base.wording import listed
from harness.doctor.finding import Finding, note, ok, problem, warning
from harness.doctor.machine import NVIDIA, Machine
from harness.matrix.wheels import has_kernels

MIB = 1 << 20
GIB = 1 << 30
# Memory in use, in bytes, that needs no explanation: a card without display and processes uses some tens of MiB itself.
IDLE_BYTES = 512 * MIB


def gpus(machine: Machine) -> Iterator[Finding]:
    """GPUs and their targets, from the KFD topology."""
    for gpu in machine.training:
        size = f", {gpu.facts.memory_bytes / GIB:.0f} GiB" if gpu.facts.memory_bytes else ""
        yield ok(f"{gpu.label}: {gpu.facts.name}{size}")
    known = {gpu.card.address for gpu in machine.gpus if gpu.card}
    driven = [card.address for card in machine.amd_cards if card.driver == "amdgpu" and card.address not in known]
    if driven and machine.kfd:
        # If another GPU can train, this one may well be an old card for the display.
        found = warning if machine.training else problem
        yield found(
            f"the driver has {listed(driven)}, but KFD does not list it",
            "ROCm sees only what KFD lists; KFD leaves out cards that it does not support, or whose slot has no PCIe "
            "atomics (`PCI rejects atomics` in the kernel log)",
            "sudo dmesg | grep -i -e kfd -e atomic",
        )
    if not machine.training and not machine.amd_cards and not machine.wsl:
        yield note("no AMD GPU was found", "the cells of the cpu stack can run here; ROCm cells cannot")


def gpu_targets(machine: Machine) -> Iterator[Finding]:
    """Kernels for each GPU in the wheels of every wanted ROCm version."""
    for gpu in machine.training:
        lacking = sorted(rocm for rocm in machine.rocm.default if not has_kernels(rocm, gpu.facts.gfx))
        first = next((stack for rocm, stack in machine.rocm.stacks if has_kernels(rocm, gpu.facts.gfx)), None)
        if lacking:
            yield warning(
                f"{gpu.label}: the wheels of ROCm {listed(lacking)} have no kernels for {gpu.facts.gfx}",
                "cells that `matrix run` takes with these will fail with `invalid device function`, which is no fault "
                "of theirs",
                f".venv/bin/matrix run {first}-plain"
                if first
                else "matrix show  # no stack of the matrix has such kernels",
            )
        else:
            yield ok(f"{gpu.label}: every wheel that `matrix run` takes has kernels for {gpu.facts.gfx}")


def integrated_gpu(machine: Machine) -> Iterator[Finding]:
    """Integrated and other GPUs that the wheels have no kernels for."""
    others = [gpu for gpu in machine.gpus if not gpu.trains]
    if not others:
        if machine.training:
            yield ok("ROCm sees no GPU that the wheels have no kernels for")
        return
    names = listed(gpu.label for gpu in others)
    if not machine.training:
        yield warning(
            f"{names}: PyTorch's ROCm wheels have no kernels for it, and there is no other GPU",
            "ROCm cells cannot run here; the cells of the cpu stack can",
            ".venv/bin/matrix run cpu-plain",
        )
        return
    indices = ",".join(str(gpu.facts.index) for gpu in machine.training)
    yield warning(
        f"ROCm also sees {names}, which PyTorch's wheels have no kernels for",
        "a program that sees all GPUs fails on it (`invalid device function`), or uses the wrong BLAS library for the "
        "others; runs of this tool do not see it, programs you start by hand do (or switch it off in the firmware)",
        f"export ROCR_VISIBLE_DEVICES={indices}  # holds in this shell",
    )


def other_vendors(machine: Machine) -> Iterator[Finding]:
    """GPUs of other makers."""
    cards = [card.address for card in machine.cards if card.vendor == NVIDIA]
    if cards:
        yield note(
            f"NVIDIA GPU at {listed(cards)}",
            "no stack of the matrix supports it; the stack `host` uses an interpreter of yours, whose torch may",
            ".venv/bin/matrix run host-plain --python INTERPRETER",
        )


def display(machine: Machine) -> Iterator[Finding]:
    """GPUs with a screen attached, whether it is on or asleep, and their memory in use."""
    for gpu in machine.training:
        if gpu.card is None:
            continue
        used = f", {gpu.card.memory_used / MIB:.0f} MiB in use" if gpu.card.memory_used is not None else ""
        if not gpu.facts.displays:
            yield ok(f"{gpu.label} has no screen{used}")
            continue
        left_out = (
            "; a campaign leaves this GPU out, and what trains on all GPUs stays unknown, without --use-screen-gpu "
            "(with make ARGS=--use-screen-gpu)"
        )
        # A campaign leaves no GPU out if it had none left then.
        alone = all(one.facts.displays for one in machine.training)
        yield note(
            f"{gpu.label} has a screen ({', '.join(gpu.facts.displays)}){used}",
            "a hang of this GPU takes the desktop with it, it is never reset then, and its free memory changes while "
            "runs are compared"
            + ("" if alone else left_out)
            + "; a processor with graphics of its own can have the screen instead",
            "sudo systemctl isolate multi-user.target  # ends the desktop until `isolate graphical.target`",
        )


def idle_memory(machine: Machine) -> Iterator[Finding]:
    """Memory in use on a GPU without a screen, beyond that of visible processes."""
    for gpu in machine.training:
        if gpu.card is None or gpu.card.memory_used is None or gpu.facts.displays:
            continue
        held = sum(process.memory for process in machine.processes if process.gpu == gpu.label)
        if gpu.card.memory_used - held > IDLE_BYTES:
            yield warning(
                f"{gpu.label}: {(gpu.card.memory_used - held) / MIB:.0f} MiB are in use by no visible process",
                "a process of another user or container, or one that crashed, holds it; a run may fail with `out of "
                "memory` through no fault of its environment",
                f"sudo fuser -v /dev/kfd {gpu.facts.render_node}",
            )
        else:
            yield ok(f"{gpu.label}: its memory is free, except for {(gpu.card.memory_used - held) / MIB:.0f} MiB")


def gpu_health(machine: Machine) -> Iterator[Finding]:
    """GPUs that failed their last probe since the boot, and take no runs."""
    for gpu in machine.training:
        if gpu.unhealthy is not None:
            yield problem(
                f"{gpu.label} takes no runs: it failed its last probe ({gpu.unhealthy})",
                "the next `matrix run` or `train` probes it again; where it fails after a reboot, too, suspect the "
                "card, its slot or its power",
                "sudo reboot",
            )
        else:
            yield ok(f"{gpu.label} has failed no probe since the boot")


def gpu_processes(machine: Machine) -> Iterator[Finding]:
    """Other processes on the GPUs, and their memory."""
    for process in machine.processes:
        what = (
            f"process {process.pid} ({process.name or 'ended'}) holds {process.memory / MIB:.0f} MiB of {process.gpu}"
        )
        if process.computes:
            fix = f"kill {process.pid}  # or wait until it ends"
            if process.name is None:
                fix = "sudo reboot  # only if that memory is not free within a minute"
            yield warning(what, "it competes with the runs for memory and time", fix)
        else:
            yield note(what, "it draws on the display; its memory is not available for training")
    if machine.training and not machine.processes:
        yield ok("no other process is seen on the GPUs")
