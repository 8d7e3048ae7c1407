"""The stand-in content of each kind of source: packages with the names and requirements of the real ones."""

import re
from collections.abc import Iterable
from pathlib import Path

from packaging.version import Version

from harness.matrix.stacks import Stack
from harness.rehearsal.packages import IndexFile, rocm_packages, stub_wheel
from harness.rehearsal.stand_in_index import FORBIDDEN, MISSING, SourceContent
from harness.rehearsal.torch_wheel import TorchLabel, relabelled, torch_stub

# The torch version with which PyTorch renamed its triton package.
RENAMED_TRITON = Version("2.10")
TRITON = "3.0.0"


def source_place(stack: Stack, python: str, cpu_wheel: Path | None, folder: Path) -> SourceContent:
    """Return the packages of a stack's source for a Python version.

    Torch is the relabelled CPU wheel, or else a stub.
    """
    origin, version = stack.origin, f"{stack.torch}+{stack.label}"
    amd = origin.extra_of == "torch"
    triton = ("triton", f"{TRITON}+{stack.label}") if amd else (_triton_of_pytorch(stack), TRITON)
    requires, beside = [f"{triton[0]}=={triton[1]}"], []
    files: list[IndexFile] = []
    if origin.rocm == "packages":
        release = _full(stack.rocm or "")
        files += rocm_packages(release, stack.targets)
        requires.append(f"rocm[libraries]=={release}" if amd else f"rocm[device-all,libraries]=={stack.rocm}.*")
        if amd:
            requires += [f"amd-torch-device-{one}=={version}; extra == 'device-{one}'" for one in stack.targets]
            beside = [*(f"amd-torch-device-{one}" for one in stack.targets), *map(_name, stack.beside)]
    label = TorchLabel.of(stack, python, requires)
    for name in beside:
        device = [f"rocm-sdk-device-{one}=={_full(stack.rocm or '')}" for one in stack.targets if name.endswith(one)]
        files.append(stub_wheel(name, version, device, label.tag))
    # The triton stub contains no module: torch would take it for a real triton.
    files.append(stub_wheel(*triton, tag=label.tag, modules={}))
    if cpu_wheel:
        made = relabelled(cpu_wheel, label, folder)
        files.append((made.name, made))
    else:
        files.append(torch_stub(label))
    return SourceContent(
        tuple(files),
        hashed=not (amd or origin.folder),
        folder=origin.folder,
        missing=FORBIDDEN if FORBIDDEN in origin.refuses else MISSING,
    )


def other_packages(pins: str, wheels: Iterable[Path]) -> SourceContent:
    """Return what stands in for PyPI: these wheels, or else a stub of every package that the pins name except torch."""
    held: list[IndexFile] = [(wheel.name, wheel) for wheel in wheels if not wheel.name.startswith("torch-")]
    named = [name for line in pins.splitlines() if (name := _name(line)) and name != "torch"]
    return SourceContent(tuple(held) or tuple(stub_wheel(name, "2.0") for name in named))


def open_pins(pins: str) -> str:
    """Return the pins with a version only for torch, because this host has only one version of each other package."""
    return re.sub(r"^(?!torch==)([\w.-]+)==\S+", r"\1", pins, flags=re.MULTILINE)


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]


def _triton_of_pytorch(stack: Stack) -> str:
    return "triton-rocm" if Version(stack.torch or "0") >= RENAMED_TRITON else "pytorch-triton-rocm"


def _full(rocm: str) -> str:
    return rocm if rocm.count(".") > 1 else f"{rocm}.0"
