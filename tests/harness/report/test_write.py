from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.index_file import index_file
from harness.evidence.records import Results
from harness.matrix.cells import Matrix
from harness.registry.tags.promotions import PROMOTIONS
from harness.report.write import built_report
from tests.harness.report.synthetic import write_runs

NAMES = ["report.html", "report.md", "report.json", "report.xml"]


@pytest.mark.slow
def test_every_file_is_written_and_damage_is_reported(matrix: Matrix, tmp_path: Path) -> None:
    results = write_runs(tmp_path, matrix, 9)
    damaged = results.run_folder("damaged")
    damaged.mkdir()
    (damaged / RunFolder.RECORD).write_text("{", encoding="utf-8")
    (tmp_path / PROMOTIONS).write_text("{}\n", encoding="utf-8")
    built = built_report(results, matrix)
    files, told = built.write(results), built.damaged
    assert [file.name for file in files] == NAMES
    assert all(file.stat().st_size for file in files)
    assert len(told) == 2
    assert str(damaged / RunFolder.RECORD) in told[0]
    assert f"{tmp_path / PROMOTIONS}:1: is damaged" in told[1]


def test_a_record_of_others_that_no_index_holds_is_reported(
    matrix: Matrix, tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    results, record = Results(tmp_path), make_record("r1", beside=("x" * 400,) * 200)
    results.begin(record.intent)
    results.finish(record)
    assert built_report(results, matrix).damaged == ()
    index_file(tmp_path).unlink()
    results.folder_of("r1").imported.touch()
    (told,) = built_report(results, matrix).damaged
    assert told.startswith(f"{results.folder_of('r1').record}: is damaged: it names more than any run does")


def test_a_folder_without_runs_gets_a_report_too(matrix: Matrix, tmp_path: Path) -> None:
    results = Results(tmp_path / "new")
    built = built_report(results, matrix)
    built.write(results)
    assert built.damaged == ()
    assert ".venv/bin/matrix run" in (tmp_path / "new" / "report.md").read_text(encoding="utf-8")
