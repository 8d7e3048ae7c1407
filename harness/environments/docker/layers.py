"""Which files of torch and ROCm lie in which layer of an image: ROCm's before torch's, no layer above 1.5 GB.

A registry limits a layer and the time of its upload, and an upload that breaks begins again with its layer. Stacks of
one ROCm have the same layers of it where its files are the same: order and borders depend on names and sizes alone.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from harness.base.errors import UserError
from harness.base.text import one_line

OTHER_WHEEL = "`matrix lock` with another index, or another torch"
# Of a layer as it is unpacked, with what the archive of it adds for each file.
LAYER_BYTES = 1_500_000_000
BLOCK_BYTES, HEADER_BYTES = 512, 1536
# What pip makes, changes or places elsewhere, and what is compiled: it lies in the last layer.
WITH_THE_LAST = re.compile(r".*\.py|[^/]+\.(data|dist-info)/.*")
# Beside them ROCm's libraries and their data lie in torch's wheel, where ROCm is no packages.
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
        """Return the bytes it takes in a layer, with the bytecode of a module: that is hardly ever larger."""
        of_one = -(-self.size // BLOCK_BYTES) * BLOCK_BYTES + HEADER_BYTES
        return 2 * of_one if self.path.endswith(".py") else of_one


def files_in_wheels(wheels: Iterable[Path], *, rocm: bool) -> list[WheelFile]:
    """Return the files of torch's wheels; `rocm` where they are for ROCm, whose files are in them or beside them.

    Raises:
        UserError: when one is damaged, or has a file that would lie outside of site-packages.
    """
    files = []
    for wheel in wheels:
        for path, size in _members(wheel):
            inside = bool(OF_ROCM.fullmatch(path)) and not OF_TORCH.fullmatch(path)
            files.append(WheelFile(path, size, rocm and (wheel.name.startswith("rocm") or inside)))
    return files


def _members(wheel: Path) -> list[tuple[str, int]]:
    """Return path and size of each file in a wheel."""
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
    """Return the files of each layer but the last, which takes all the rest. A file above the limit has its own."""
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
