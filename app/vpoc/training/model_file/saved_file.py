"""Loads a file of torch.save that anybody may have made. As a program: says whether a file holds a tensor."""

import os
import pickletools
import re
import resource
import struct
import sys
import zipfile
from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import torch

ZIP = b"PK\x03\x04"
# Pickles of a file in the format before torch 1.6; the others have one.
LEGACY_PICKLES = 5
# Most memory that loading a file may take as a program, in bytes: so many times the file, and some more for Python.
MEMORY_PER_BYTE, MORE_MEMORY = 4, 1 << 30
# The records at the end of a zip archive: the last one, and before it, in large archives, a wider one and its place.
END, WIDE_END, WIDE_PLACE = struct.Struct("<4s8x2I2x"), struct.Struct("<4s36x2Q"), struct.Struct("<4s4xQ4x")


def load_saved(file: IO[bytes], *, only_tensors: bool) -> Any:
    """Return the tensors and plain values in a file of torch.save.

    ValueError where a small file could fill the memory or take hours to load: its parts are compressed or overlap, or
    it has two directories, as torch never writes them, or tuples are nested so that hashing one as a key takes hours.
    With `only_tensors` also where it names a type that no tensor needs, because some allocate as much memory as the
    file says.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    pickles, count = file, LEGACY_PICKLES
    if only_tensors or file.read(len(ZIP)) == ZIP:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
        _require_one_directory(file, size)
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError("compressed")
        if sum(part.file_size for part in parts) > size:
            raise ValueError("parts overlap")
        file.seek(0)
        pickles, count = BytesIO(torch._C.PyTorchFileReader(file).get_record("data.pkl")), 1
    pickles.seek(0)
    for _ in range(count):
        _check_pickle(pickles, size, only_tensors=only_tensors)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _require_one_directory(file: IO[bytes], size: int) -> None:
    """Raise ValueError unless the directory of a zip archive is where every reader looks for it.

    Torch reads the directory at the place that the end of the archive names; Python reads what is just before the end.
    """
    ends = size - END.size
    file.seek(ends)
    signature, length, begins = END.unpack(file.read(END.size))
    sound = signature == b"PK\5\6"
    file.seek(max(0, ends - WIDE_PLACE.size))
    signature, place = WIDE_PLACE.unpack(file.read(WIDE_PLACE.size))
    if signature == b"PK\6\7":
        ends -= WIDE_PLACE.size + WIDE_END.size
        if place != ends:
            raise ValueError("two directories")
        file.seek(ends)
        signature, length, begins = WIDE_END.unpack(file.read(WIDE_END.size))
        sound = sound and signature == b"PK\6\6"
    if not sound or begins + length != ends:
        raise ValueError("two directories")


def _check_pickle(pickle: IO[bytes], most: int, *, only_tensors: bool) -> None:
    """Raise ValueError if the values that a pickle repeats, each counted as often as it is, are more than `most`."""
    sizes, marks, kept = list[int](), list[int](), dict[Any, int]()
    for opcode, argument, _ in pickletools.genops(pickle):
        if only_tensors and opcode.name == "GLOBAL" and not _is_of_tensors(str(argument)):
            raise ValueError(f"names {argument:.80}")
        if opcode.name == "MARK":
            marks.append(len(sizes))
        elif opcode.name.endswith("PUT"):
            kept[argument] = sizes[-1]
        elif opcode.name.endswith("GET"):
            sizes.append(kept.get(argument, 1))
            most -= sizes[-1]
        else:
            taken = [part for part in opcode.stack_before if part is not pickletools.markobject]
            first = len(sizes) - len(taken)
            if pickletools.stackslice in taken:
                first = marks.pop() - len(taken) + 1
            sizes[first:] = [sum(sizes[first:]) + 1] * len(opcode.stack_after)
        if most < 0:
            raise ValueError("more values than bytes")


def _is_of_tensors(name: str) -> bool:
    """Return whether a pickle of tensors and plain values names this type or function."""
    known = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
    return name in known or (name.startswith("torch ") and name.endswith("Storage"))


def values_in(value: Any) -> Collection[Any]:
    """Return the values that a dict, list or tuple holds; nothing for another value."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def what_is_wrong(path: Path) -> str | None:
    """Return what is wrong with a file of weights, in one line; None where it loads and holds a tensor."""
    try:
        with path.open("rb") as file:
            left, seen = [load_saved(file, only_tensors=False)], set[int]()
    except MemoryError:
        return "MemoryError: loading it takes many times the memory that it has bytes"
    except Exception as error:  # a damaged file can fail anywhere in the unpickler
        return f"{type(error).__name__}: {error}"
    while left:
        value = left.pop()
        # A tensor on the meta device has no values.
        if isinstance(value, torch.Tensor) and not value.is_meta:
            return None
        # A list may be in another one twice, and in itself.
        if id(value) not in seen:
            seen.add(id(value))
            left += values_in(value)
    return "it holds no tensor"


def limit_memory(more: int) -> None:
    """Let this process take at most `more` bytes of memory than it has.

    A value such as a `bytearray` of any size is in a file of some hundred bytes, and would fill the host's memory.
    """
    taken = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    if taken:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = int(taken[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    weights = Path(sys.argv[1])
    limit_memory(MEMORY_PER_BYTE * weights.stat().st_size + MORE_MEMORY)
    sys.exit(what_is_wrong(weights))
