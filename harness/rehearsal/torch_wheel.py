"""Torch for a rehearsal: the CPU wheel with another label, or a stub that only reports a version."""

import base64
import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from harness.matrix.stacks import Stack
from harness.rehearsal.packages import required_lines, stub_wheel

# In a local header of a zip archive: the offset of the lengths of name and extra field, and the size of the header,
# after which these two fields begin.
LENGTHS, HEADER_BYTES = 26, 30
DATA_DESCRIPTOR = 0x08
BLOCK = 1 << 22
VERSION = "torch/version.py"


@dataclass(frozen=True)
class TorchLabel:
    """The torch of a stack: its version, its HIP, its Python, and its requirements beyond those of the CPU wheel."""

    version: str
    hip: str
    python: str
    requires: tuple[str, ...]

    @classmethod
    def of(cls, stack: Stack, python: str, requires: Iterable[str]) -> "TorchLabel":
        """Return the label of a stack's torch. Its HIP version says that it is a rehearsal's."""
        return cls(f"{stack.torch}+{stack.label}", f"{stack.hip}.0-rehearsal", python, tuple(requires))

    @property
    def tag(self) -> str:
        """The tag of its wheel."""
        interpreter = f"cp{self.python.replace('.', '')}"
        return f"{interpreter}-{interpreter}-manylinux_2_28_x86_64"

    @property
    def file(self) -> str:
        """The file name of its wheel."""
        return f"torch-{self.version}-{self.tag}.whl"


def torch_stub(label: TorchLabel) -> tuple[str, bytes]:
    """Return a wheel of torch that can be imported and reports its version, but computes nothing."""
    modules = {
        "torch/__init__.py": "from torch.version import __version__ as __version__\n",
        VERSION: f"__version__ = {label.version!r}\nhip = {label.hip!r}\ncuda = None\n",
    }
    return stub_wheel("torch", label.version, label.requires, label.tag, modules)


def relabelled(wheel: Path, label: TorchLabel, folder: Path) -> Path:
    """Write a CPU wheel of torch into a folder under the given label; its libraries are copied in compressed form."""
    made = folder / label.file
    with ZipFile(wheel) as old, made.open("wb") as stream, ZipFile(stream, "w", ZIP_DEFLATED) as new:
        info = next(name.partition("/")[0] for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        now = f"torch-{label.version}.dist-info"
        changed = {
            VERSION: _version(old.read(VERSION).decode(), label),
            f"{info}/METADATA": _metadata(old.read(f"{info}/METADATA").decode(), label),
        }
        record = old.read(f"{info}/RECORD").decode()
        for path, text in changed.items():
            record = re.sub(rf"^{re.escape(path)},.*$", _line(path, text), record, flags=re.MULTILINE)
        changed[f"{info}/RECORD"] = record.replace(f"{info}/", f"{now}/")
        for member in old.infolist():
            if member.filename in changed:
                continue
            if member.filename.startswith(f"{info}/"):
                changed[member.filename] = old.read(member).decode("utf-8", "surrogateescape")
            else:
                _copy_packed(old, new, member)
        new.start_dir = stream.tell()
        for path, text in changed.items():
            new.writestr(ZipInfo(path.replace(f"{info}/", f"{now}/")), text.encode("utf-8", "surrogateescape"))
    return made


def _copy_packed(old: ZipFile, new: ZipFile, member: ZipInfo) -> None:
    """Copy a member in its compressed form, because compressing hundreds of megabytes again takes half a minute."""
    source, target = old.fp, new.fp
    assert source is not None
    assert target is not None
    source.seek(member.header_offset)
    name, extra = struct.unpack_from("<HH", source.read(HEADER_BYTES), LENGTHS)
    source.seek(name + extra, 1)
    member.header_offset = target.tell()
    # The header has the sizes, so no data descriptor follows the data.
    member.flag_bits &= ~DATA_DESCRIPTOR
    target.write(member.FileHeader())
    left = member.compress_size
    while left:
        block = source.read(min(BLOCK, left))
        target.write(block)
        left -= len(block)
    new.filelist.append(member)
    new.NameToInfo[member.filename] = member


def _version(text: str, label: TorchLabel) -> str:
    text = re.sub(r"^__version__ = .*$", f"__version__ = {label.version!r}", text, flags=re.MULTILINE)
    return re.sub(r"^hip\b.*$", f"hip = {label.hip!r}", text, flags=re.MULTILINE)


def _metadata(text: str, label: TorchLabel) -> str:
    head, blank, rest = text.partition("\n\n")
    head = re.sub(r"^Version: .*$", f"Version: {label.version}", head, flags=re.MULTILINE)
    return "\n".join((head, *required_lines(label.requires))) + blank + rest


def _line(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(text.encode())}"
