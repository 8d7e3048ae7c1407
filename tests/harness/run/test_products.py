"""Tests of the checks of the files that a user's own program has to produce."""

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_folder import RunFolder
from harness.matrix.programs import Program
from harness.run.products import check_products, safetensors_problem, stamps


def safetensors(header: Mapping[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
UNREADABLE = "is not a safetensors file: its header cannot be read"
ELSEWHERE = "is damaged: its tensors are not where its header says"
WEIGHTS = safetensors({"__metadata__": {"format": "pt"}, "w": TENSOR}, bytes(8))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    Path(folder.new_work.program).mkdir(parents=True)
    return folder


def left(folder: RunFolder, name: str, content: bytes) -> Path:
    file = Path(folder.work.program, name)
    file.write_bytes(content)
    return file


def problems(folder: RunFolder, *, before: Any = None, **product: Any) -> list[tuple[str, str]]:
    program = Program.model_validate({"command": "x", "source": "code", "produces": [product]})
    found = check_products(folder, program, before or {}, lambda _: ("does not load: no", ""))
    return [(one.diagnosis, one.problem) for one in found if one.problem]


def test_a_file_has_to_be_there_and_newer_than_the_start(folder: RunFolder) -> None:
    assert problems(folder, file="out.bin") == [("no-result", "is not there")]
    left(folder, "out.bin", b"old")
    program = Program.model_validate({"command": "x", "source": "code", "produces": [{"file": "out.bin"}]})
    before = stamps(folder, program)
    assert problems(folder, file="out.bin", before=before) == [("no-result", "is older than its start")]


def test_a_file_that_was_written_again_is_newer(folder: RunFolder) -> None:
    file = left(folder, "out.bin", b"old")
    program = Program.model_validate({"command": "x", "source": "code", "produces": [{"file": "out.bin"}]})
    before = stamps(folder, program)
    file.write_bytes(b"newer")
    assert problems(folder, file="out.bin", before=before) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(folder: RunFolder, kind: str) -> None:
    place = Path(folder.work.program, "out.bin")
    if kind == "link":
        place.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    ((diagnosis, problem),) = problems(folder, file="out.bin")
    assert diagnosis == "no-result"
    assert problem.startswith("is ")
    assert not folder.kept_product(1).exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"eval": {"loss": 0.5}}', []),
        (b'{"eval": {"loss": NaN}}', [("not-finite", "says that eval.loss is nan")]),
        (b'{"eval": {"loss": 1%s}}' % (b"0" * 400), []),
        (b'{"eval": 1}', [("no-result", "has no number eval.loss")]),
        (b"{", [("no-result", "is not JSON")]),
        # Parsed, this would take half a gigabyte of memory.
        (b'{"eval": {"loss": 0.5}, "": [%s0]}' % (b"[]," * (5 << 20)), [("no-result", "has more than 4194304 bytes")]),
        # Two hundred megabytes.
        (b"[" * (2 << 20) + b"]" * (2 << 20), [("no-result", "holds more than 393216 lists and objects")]),
    ],
)
def test_a_number_in_json_has_to_be_finite(folder: RunFolder, content: bytes, found: list[Any]) -> None:
    left(folder, "metrics.json", content)
    assert problems(folder, file="metrics.json", finite=["eval.loss"]) == found


def test_weights_are_loaded_from_the_copy(folder: RunFolder) -> None:
    left(folder, "model.pt", b"weights")
    assert problems(folder, file="model.pt", loads="torch") == [("model-does-not-load", "does not load: no")]
    assert folder.kept_product(1).read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WEIGHTS, ""),
        (WEIGHTS[:-1], "is damaged: it is not as long as its header says"),
        (WEIGHTS[:4], "is not a safetensors file: it is too short for its header"),
        (struct.pack("<Q", 2**60) + bytes(20), "is not a safetensors file: it is too short for its header"),
        (safetensors({}, b""), "holds no tensor"),
        (
            safetensors({"w": {**TENSOR, "shape": [3]}}, bytes(8)),
            "is damaged: its tensors are not where its header says",
        ),
        (safetensors({"w": {**TENSOR, "dtype": "X"}}, bytes(8)), UNREADABLE),
        (safetensors({"a": TENSOR, "b": TENSOR}, bytes(8)), ELSEWHERE),
        (safetensors({"w": {**TENSOR, "data_offsets": [0, math.inf]}}, bytes(8)), UNREADABLE),
        (safetensors({"w": {**TENSOR, "data_offsets": [0, 4, 8]}}, bytes(8)), UNREADABLE),
        (safetensors({"__metadata__": {"format": "pt"}, "w": TENSOR}, bytes(8)), ""),
        (safetensors({"__metadata__": None, "w": TENSOR}, bytes(8)), ""),
        # The safetensors library refuses each of these.
        (safetensors({"__metadata__": {"format": 1}, "w": TENSOR}, bytes(8)), UNREADABLE),
        (safetensors({"w": {**TENSOR, "shape": [-2, -1]}}, bytes(8)), UNREADABLE),
        (safetensors({"w": {**TENSOR, "shape": [2, True]}}, bytes(8)), UNREADABLE),
        # Without these bounds, a shape of three thousand numbers of thousands of digits took minutes to multiply.
        (safetensors({"w": {**TENSOR, "shape": ["2"]}}, bytes(8)), UNREADABLE),
        (safetensors({"w": {**TENSOR, "shape": [1] * 65}}, bytes(8)), UNREADABLE),
    ],
)
def test_safetensors_are_what_their_header_says(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert safetensors_problem(file) == problem


@pytest.mark.parametrize(("count", "problem"), [(20_000, ""), (150_000, UNREADABLE)])
def test_a_file_of_many_tensors_is_read_up_to_a_bound_of_its_own(count: int, problem: str, tmp_path: Path) -> None:
    """A mixture of experts has ten thousand tensors or more, so its header has more values than other JSON files."""
    tensor = b'{"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}'
    header = b"{" + b",".join(b'"%d": %b' % (number, tensor) for number in range(count)) + b"}"
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    assert safetensors_problem(file) == problem


def test_a_header_of_more_objects_than_tensors_have_is_not_taken_in(tmp_path: Path) -> None:
    """An object takes twenty times as much memory as a number."""
    objects = b'{"w": %b, "__metadata__": [%b]}' % (json.dumps(TENSOR).encode(), b",".join([b'{"":0}'] * 400_000))
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(objects)) + objects + bytes(8))
    assert safetensors_problem(file) == UNREADABLE
