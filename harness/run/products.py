"""Copies the files that a program of the user's own left to where it cannot reach them, and checks the copies."""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.files.json_bounds import load_json
from harness.base.files.untrusted_file import NotAFileError
from harness.evidence.files.kept_copies import copy_from_work
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import LARGEST, WorkFolder
from harness.evidence.outcome.diagnoses import Diagnosis
from harness.evidence.outcome.evidence import FoundProduct
from harness.matrix.programs import Product, Program

# Largest JSON file that is read, in bytes.
LARGEST_JSON = 4 << 20
# Largest header of a safetensors file, in bytes, and most values in it: enough for a hundred thousand tensors of eight
# values each.
LARGEST_HEADER, MOST_HEADER_VALUES = 16 << 20, 1 << 20
# Most opening brackets in either: a list of one list takes fifty times as much memory as its two bytes. A tensor has
# one object and two lists.
MOST_BRACKETS = 3 << 17
MOST_DIMENSIONS = 64
PREFIX = struct.Struct("<Q")
# Bits of each type that a safetensors file may name.
TYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
    "C64": 64,
}

# Loads a copy of weights; returns what is wrong with it, and why that could not be found out. Either may be empty.
Loader = Callable[[Path], tuple[str, str]]


def stamps(folder: RunFolder, program: Program) -> dict[str, tuple[object, ...]]:
    """Return a stamp of each product that already exists; the stamp changes when the file is rewritten."""
    found: dict[str, tuple[object, ...]] = {}
    for product in program.produces:
        try:
            entry = folder.work.tree.look(f"{folder.work.PROGRAM}/{product.file}")
        except (FileNotFoundError, NotAFileError):
            continue
        found[product.file] = (entry.inode, entry.changed, entry.size)
    return found


def check_products(
    folder: RunFolder, program: Program, before: Mapping[str, tuple[object, ...]], loads: Loader | None
) -> tuple[FoundProduct, ...]:
    """Copy and check the files that a program had to leave.

    `loads`: checks a copy of weights; None where nothing can load one.

    Raises:
        UserError: when a copy cannot be written.
    """
    after = stamps(folder, program)
    found = []
    for number, product in enumerate(program.produces, 1):
        if product.file in before and before[product.file] == after.get(product.file):
            found.append(FoundProduct(product, problem="is older than its start"))
            continue
        name, copy = f"{WorkFolder.PROGRAM}/{product.file}", folder.kept_product(number)
        sha256, problem = copy_from_work(folder, name, LARGEST["model"], copy)
        if problem or sha256 is None:
            found.append(FoundProduct(product, problem=problem or "is not there"))
        else:
            found.append(_checked(FoundProduct(product, sha256), copy, loads))
    return tuple(found)


def _checked(found: FoundProduct, copy: Path, loads: Loader | None) -> FoundProduct:
    product = found.product
    if product.finite:
        diagnosis, problem = _json_problem(copy, product)
        return replace(found, diagnosis=diagnosis, problem=problem)
    if product.loads == "safetensors":
        return replace(found, diagnosis="model-does-not-load", problem=safetensors_problem(copy))
    if product.loads == "torch":
        problem, unchecked = loads(copy) if loads else ("", "nothing was made to load it in")
        return replace(found, diagnosis="model-does-not-load", problem=problem, unchecked=unchecked)
    return found


def _json_problem(copy: Path, product: Product) -> tuple[Diagnosis, str]:
    """Return what is wrong with the numbers of a JSON file; an empty text where nothing is."""
    if copy.stat().st_size > LARGEST_JSON:
        return "no-result", f"has more than {LARGEST_JSON} bytes"
    content = copy.read_bytes()
    if _holds_many_parts(content):
        return "no-result", f"holds more than {MOST_BRACKETS} lists and objects"
    try:
        # NaN is not allowed in JSON, but Python writes it.
        value = json.loads(content)
    except (ValueError, RecursionError):
        return "no-result", "is not JSON"
    for key in product.finite:
        number: Any = value
        for part in key.split("."):
            number = number.get(part) if isinstance(number, dict) else None
        if isinstance(number, bool) or not isinstance(number, int | float):
            return "no-result", f"has no number {key}"
        # Every integer is finite, and one may be too large for a float.
        if isinstance(number, float) and not math.isfinite(number):
            return "not-finite", f"says that {key} is {number}"
    return "no-result", ""


def safetensors_problem(file: Path) -> str:
    """Return what is wrong with a file of weights in the safetensors format; an empty text where nothing is.

    Its header is JSON with the type, shape and place of each tensor, and the tensors fill the rest of the file without
    a gap: huggingface.co/docs/safetensors, "Format".
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(PREFIX.size)
        length = PREFIX.unpack(prefix)[0] if len(prefix) == PREFIX.size else size
        if length > min(LARGEST_HEADER, size - PREFIX.size):
            return "is not a safetensors file: it is too short for its header"
        try:
            content = stream.read(length)
            if _holds_many_parts(content):
                raise ValueError("of no tensors")
            header = load_json(content, MOST_HEADER_VALUES)
            told = header.pop("__metadata__", None)
            told = {} if told is None else told
            if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
                raise ValueError("of no texts")
            tensors = header.values()
            places = sorted((*_pair(one["data_offsets"]), _bytes(one)) for one in tensors)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return "is not a safetensors file: its header cannot be read"
    end = 0
    for begins, ends, needed in places:
        if begins != end or ends - begins != needed:
            return "is damaged: its tensors are not where its header says"
        end = ends
    if end != size - PREFIX.size - length:
        return "is damaged: it is not as long as its header says"
    return "" if places else "holds no tensor"


def _holds_many_parts(content: bytes) -> bool:
    return content.count(b"{") + content.count(b"[") > MOST_BRACKETS


def _pair(values: Sequence[Any]) -> tuple[int, int]:
    begins, ends = _integers(values)
    return begins, ends


def _bytes(tensor: Mapping[str, Any]) -> int:
    return math.prod(_integers(tensor["shape"])) * TYPE_BITS[tensor["dtype"]] // 8


def _integers(values: Sequence[Any]) -> Sequence[int]:
    """Return the values if they are few, and integers from 0 on: JSON is read with integers of limited size only."""
    if len(values) > MOST_DIMENSIONS or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("no shape or place")
    return values
