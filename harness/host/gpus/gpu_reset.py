"""Resets one GPU, if that is permitted and disturbs nobody."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.base.sysfs import is_simulated
from harness.base.time_limits import ANSWER_SECONDS, BackgroundCall
from harness.host.facts import GpuFacts
from harness.host.gpus.amdgpu import device_folder, pci_address
from harness.host.gpus.displays import why_a_screen_may_be_lost
from harness.host.gpus.memory_owners import memory_owners

TOOL_SECONDS = 60
KILLED_SECONDS = 2
# Both tools of AMD print this. amd-smi also ends with status 0 where the driver refuses a reset.
SUCCESS = "Successfully reset"
# PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h: only in this namespace pids are those of the driver.
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
# AMD's tools, which need root for a reset.
AMD_SMI, ROCM_SMI = "amd-smi", "rocm-smi"


@dataclass(frozen=True)
class Reset:
    """The result of a reset: whether it was done, and by what, or why not."""

    done: bool
    detail: str


def may_reset(gpu: GpuFacts, root: Path) -> bool:
    """Return whether this user may reset a GPU, as far as that is known before: by a tool or by the kernel's file."""
    folder = device_folder(gpu, root)
    by_tool = not is_simulated(root) and os.geteuid() == 0 and any(map(shutil.which, (AMD_SMI, ROCM_SMI)))
    return by_tool or (folder is not None and os.access(folder / "reset", os.W_OK))


def reset_gpu(gpu: GpuFacts, root: Path) -> Reset:
    """Reset a GPU. Refuse it if the GPU may drive a screen or a process holds memory on it, or if that is not known.

    On a simulated host only the kernel's file is written: AMD's tools would reset a GPU of the real machine.
    """
    try:
        used_by = BackgroundCall(partial(_used_by, gpu, root)).result(ANSWER_SECONDS)
    except TimeoutError:
        used_by = f"the driver does not say within {ANSWER_SECONDS:.0f} s who uses it"
    if used_by:
        return Reset(False, f"not reset: {used_by}")
    refusals = []
    for reset in _ways(gpu, root):
        if reset.done:
            return reset
        refusals.append(reset.detail)
    return Reset(False, f"not reset: {'; '.join(refusals)}")


def _used_by(gpu: GpuFacts, root: Path) -> str | None:
    """Return in words what a reset would disturb; None where nothing."""
    if why := why_a_screen_may_be_lost(gpu, root):
        return why
    names = {str(gpu.kfd_id), pci_address(gpu, root)}
    owners = (owner for owner in memory_owners((), root) if owner.gpu in names)
    if holders := [owner for owner in owners if not _has_ended(owner.pid, root)]:
        told = ", ".join(sorted({f"{owner.name or 'process'} (pid {owner.pid})" for owner in holders}))
        return f"{told} holds memory on it"
    return None


def _has_ended(pid: int, root: Path) -> bool:
    """Return whether a process that holds memory is known to be gone.

    The driver may go on listing what such a process held on a GPU that hung, and only a reset frees that.
    """
    try:
        if str((root / "proc/self/ns/pid").readlink()) != INITIAL_PID_NAMESPACE:
            return False
        # Unlike /proc, this also knows processes of other users where they are hidden (hidepid).
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _ways(gpu: GpuFacts, root: Path) -> Iterator[Reset]:
    """Yield the result of each way to reset the GPU that this host has; each is tried when it is requested."""
    address = pci_address(gpu, root)
    if address is None:
        yield Reset(False, "its PCI address is not known")
        return
    tools = not is_simulated(root)
    if tools and shutil.which(AMD_SMI):
        yield _by_tool(AMD_SMI, "reset", "--gpureset", "--gpu", address, says=SUCCESS)
    if tools and shutil.which(ROCM_SMI):
        number = _rocm_smi_number(address)
        # rocm-smi has numbers of its own: without the address beside the number, another GPU might be reset.
        unknown = Reset(False, f"rocm-smi does not list {address}")
        yield unknown if number is None else _by_tool(ROCM_SMI, "--gpureset", "-d", number, says=SUCCESS)
    yield _by_file(gpu, root)


def _by_tool(*command: str, says: str = "") -> Reset:
    """Return the result of a command that resets a GPU. `says`: what it prints once that is done."""
    name = command[0]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            return Reset(False, f"{name}: {error.strerror}")
        try:
            process.wait(TOOL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            # A short wait, because a process that hangs in the driver cannot be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_SECONDS)
            return Reset(False, f"{name}: no answer in {TOOL_SECONDS} s")
        output.seek(0)
        said = output.read().decode(errors="replace")
    last = next(iter(said.strip().splitlines()[-1:]), "said nothing").strip()
    done = process.returncode == 0 and says in said
    return Reset(True, f"reset by {name}") if done else Reset(False, f"{name}: {last}")


def _rocm_smi_number(address: str) -> str | None:
    """Return rocm-smi's number of the GPU at an address, from `{"card0": {"PCI Bus": "0000:03:00.0"}}`."""
    command = (ROCM_SMI, "--showbus", "--json")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=True).stdout
        cards = json.loads(answer[answer.find("{") :])
        found = (name for name, card in cards.items() if card.get("PCI Bus", "").lower() == address)
        return str(next(found)).removeprefix("card")
    except (OSError, ValueError, AttributeError, StopIteration, subprocess.SubprocessError):
        return None


def _by_file(gpu: GpuFacts, root: Path) -> Reset:
    """Reset a GPU by the kernel's own file, to which only root may write."""
    folder = device_folder(gpu, root)
    file = folder / "reset" if folder else None
    if file is None or not file.exists():
        return Reset(False, "the kernel offers no reset of it")
    if not os.access(file, os.W_OK):
        return Reset(False, f"{file}: Permission denied; resetting needs root")
    # Written by another process, because the write can hang in the driver.
    told = _by_tool("sh", "-c", 'echo 1 > "$1"', "sh", str(file))
    return Reset(told.done, f"reset by {file}" if told.done else f"{file}: {told.detail}")
