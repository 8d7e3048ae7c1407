import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from harness.cli.schemas import SCHEMAS
from harness.evidence.gpus.gpu_evidence import GPU_EVIDENCE, LARGEST_BYTES, read_gpu_evidence
from harness.evidence.records import Results
from tests.harness.gpu_evidence_files import a_row, gpu_evidence, write_gpu_evidence


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def test_every_file_is_found_whatever_its_folder_is_called(results: Results) -> None:
    assert read_gpu_evidence(results) == []
    write_gpu_evidence(results, gpu_evidence(), "from the other machine")
    write_gpu_evidence(results, gpu_evidence(a_row(verdict="differs"), device="cpu"), "20261122T170000Z")
    write_gpu_evidence(results, "{", ".unfinished.1.tmp")
    (results.gpu_evidence / "without").mkdir()
    (results.gpu_evidence / "notes.txt").write_text("no folder")
    found = read_gpu_evidence(results)
    assert [one.file for one in found] == [
        f"gpu-evidence/20261122T170000Z/{GPU_EVIDENCE}",
        f"gpu-evidence/from the other machine/{GPU_EVIDENCE}",
    ]
    assert [one.content.device for one in found if one.content] == ["cpu", "cuda"]


def test_one_that_was_copied_beside_the_folders_is_found_too(results: Results) -> None:
    write_gpu_evidence(results, gpu_evidence(), ".")
    assert [(one.file, one.problem) for one in read_gpu_evidence(results)] == [(f"gpu-evidence/{GPU_EVIDENCE}", "")]


def test_type_and_schema_take_the_same_files(results: Results) -> None:
    whole = gpu_evidence(a_row(seconds=None), gfx=None, memory_bytes=None, hip=None, source=None, source_dirty=None)
    schema = Draft202012Validator(json.loads((SCHEMAS / "gpu-evidence.schema.json").read_text(encoding="utf-8")))
    schema.validate(whole)
    write_gpu_evidence(results, whole)
    (found,) = read_gpu_evidence(results)
    assert found.content is not None
    assert json.loads(found.content.model_dump_json(by_alias=True)) == whole


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda whole: whole.update(kind="record"), "kind"),
        (lambda whole: whole.update(schema=3), "schema"),
        (lambda whole: whole.update(cell="cpu-plain"), "cell"),
        (lambda whole: whole.update(device="tpu"), "device"),
        (lambda whole: whole.update(started="yesterday"), "started"),
        (lambda whole: whole["facts"].update(source="main"), "facts.source"),
        (lambda whole: whole["facts"].update(memory_bytes=10**400), "facts.memory_bytes"),
        (lambda whole: whole["rows"][0].update(verdict="good"), r"rows.0.verdict"),
        (lambda whole: whole["rows"][0].pop("shown_red"), "rows.0.shown_red"),
        (lambda whole: whole.update(rows=[1] * 50_000), "rows.0"),
    ],
)
def test_a_file_of_something_else_is_a_problem_with_its_key(
    change: Callable[[dict[str, Any]], object], problem: str, results: Results
) -> None:
    whole = gpu_evidence()
    change(whole)
    write_gpu_evidence(results, whole)
    (found,) = read_gpu_evidence(results)
    assert found.content is None
    assert found.problem.startswith(f"is damaged or something else: {problem}: ")


@pytest.mark.parametrize(
    "text", ["", "{", "\0", "[" * 50_000, '{"schema": 1, "a": ' + "[" * 50_000, '"\\ud800"', "{" + '"x":1,' * 9]
)
def test_damage_is_a_problem_too(text: str, results: Results) -> None:
    write_gpu_evidence(results, text)
    (found,) = read_gpu_evidence(results)
    assert found.problem.startswith("is damaged or something else: Invalid JSON")


def test_the_problem_is_short_whatever_a_key_is_called(results: Results) -> None:
    write_gpu_evidence(results, {**gpu_evidence(), "x" * 10_000: 1})
    (found,) = read_gpu_evidence(results)
    assert len(found.problem) == 200


def test_a_file_that_is_too_large_is_not_read(results: Results) -> None:
    file = write_gpu_evidence(results, gpu_evidence())
    os.truncate(file, LARGEST_BYTES + 1)
    (found,) = read_gpu_evidence(results)
    assert (found.content, found.problem) == (None, "cannot be read: is larger than 4000000 bytes")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "Too many levels of symbolic links"),
        (lambda file: file.symlink_to(file.name), "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_file_is_neither_waited_for_nor_read(
    place: Callable[[Path], object], problem: str, results: Results
) -> None:
    folder = results.gpu_evidence / "x"
    folder.mkdir(parents=True)
    place(folder / GPU_EVIDENCE)
    (found,) = read_gpu_evidence(results)
    assert found.problem == f"cannot be read: {problem}"


def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(results: Results) -> None:
    write_gpu_evidence(results, "{", os.fsdecode(b"caf\xe9"))
    (found,) = read_gpu_evidence(results)
    assert found.file == f"gpu-evidence/caf\ufffd/{GPU_EVIDENCE}"
