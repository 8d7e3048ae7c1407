"""Decides which files of torch and ROCm lie in which layer of an image: ROCm before torch, each at most 1.5 GB.

Registries limit the size of a layer and the time of its upload, and a broken upload starts over with its layer. Stacks
of one ROCm share the layers whose files are the same, because order and borders depend only on names and sizes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from harness.base.errors import UserError
from harness.base.text import one_line

OTHER_WHEEL = "`matrix lock` with another index, or another torch"
# Unpacked size of a layer, in bytes, with what the archive adds for each file.
LAYER_BYTES = 1_500_000_000
BLOCK_BYTES, HEADER_BYTES = 512, 1536
# Files that pip makes, changes or places elsewhere, or that are compiled: they lie in the last layer.
WITH_THE_LAST = re.compile(r".*\.py|[^/]+\.(data|dist-info)/.*")
# If ROCm does not come as packages, its libraries and their data lie in torch's wheel beside these files of torch.
OF_TORCH = re.compile(r"torch/lib/(lib(torch|c10|caffe2|shm|aotriton)|aotriton)[^/]*(/.*)?")
OF_ROCM = re.compile(r"torch/(lib|share)/.*")


@dataclass(frozen=True)
class WheelFile:
    """A file in a wheel, by its path from site-packages."""

    path: str
    size: int
    of_rocm: bool

    @property
    def room(self) -> int:
        """The bytes that the file takes in a layer; for a module with its bytecode, which is hardly ever larger."""
        of_one = -(-self.size // BLOCK_BYTES) * BLOCK_BYTES + HEADER_BYTES
        return 2 * of_one if self.path.endswith(".py") else of_one


def files_in_wheels(wheels: Iterable[Path], *, rocm: bool) -> list[WheelFile]:
    """Return the files of torch's wheels; `rocm`: the wheels are for ROCm, whose files lie in them or in wheels beside.

    Raises:
        UserError: when a wheel is damaged, or has a file that would lie outside of site-packages.
    """
    files = []
    for wheel in wheels:
        for path, size in _members(wheel):
            inside = bool(OF_ROCM.fullmatch(path)) and not OF_TORCH.fullmatch(path)
            files.append(WheelFile(path, size, rocm and (wheel.name.startswith("rocm") or inside)))
    return files


def _members(wheel: Path) -> list[tuple[str, int]]:
    """Return the path and size of each file in a wheel."""
    try:
        with ZipFile(wheel) as archive:
            members = [(member.filename, member.file_size) for member in archive.infolist() if not member.is_dir()]
    except BadZipFile as error:
        raise UserError(f"{wheel.name}: is no wheel, or damaged: {error}; {OTHER_WHEEL}") from None
    for path, _ in members:
        if path.startswith("/") or ".." in path.split("/"):
            raise UserError(f"{wheel.name}: {one_line(path[:80])} would lie outside of site-packages; {OTHER_WHEEL}")
    return members


def split(files: Iterable[WheelFile], limit: int) -> list[list[str]]:
    """Return the files of each layer except the last, which takes the rest. A file above the limit gets its own."""
    ordered = sorted(files, key=lambda file: file.path)
    apart = [file for file in ordered if not WITH_THE_LAST.fullmatch(file.path)]
    rest = sum(file.room for file in ordered if WITH_THE_LAST.fullmatch(file.path))
    of_rocm = _filled([(file.path, file.room) for file in apart if file.of_rocm], limit)
    of_torch = _filled([*((file.path, file.room) for file in apart if not file.of_rocm), ("", rest)], limit)
    return [*of_rocm, *of_torch[:-1]]


def _filled(files: Sequence[tuple[str, int]], limit: int) -> list[list[str]]:
    """Return the files in layers, in their order: each layer is filled before the next one begins."""
    layers: list[list[str]] = []
    left = 0
    for path, room in files:
        if not layers or room > left:
            layers.append([])
            left = limit
        layers[-1].append(path)
        left -= room
    return layers
