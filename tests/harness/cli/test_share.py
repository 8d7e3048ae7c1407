import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import __main__ as entry
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts

Matrix = Callable[..., tuple[int, str, str]]


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: HostFacts) -> Matrix:
    """Return a function that runs `matrix` on the tests' host and returns exit code, standard output and error."""
    monkeypatch.setattr("harness.cli.share.read_host", lambda _: host)

    def run(results: Path, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["matrix", "--results", str(results), *words])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


@pytest.fixture
def kept(tmp_path: Path, make_record: Callable[..., Record], host: HostFacts) -> Path:
    """Return a results folder with a run of this host, and one of another host that shares the folder."""
    results = Results(tmp_path / "results")
    other = host.model_copy(update={"machine": "o" * 16})
    for record in (make_record("r1"), make_record("r2", host=other)):
        results.begin(record.intent)
        results.finish(record)
    return results.folder


def test_what_was_exported_and_imported_is_reported(matrix: Matrix, kept: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "a.tar.gz")
    code, out, err = matrix(kept, "export", file)
    assert code == 0
    assert out.startswith(f"1 run in {file}, SHA-256 ")
    assert err == "matrix: left out: 1 run of other hosts: export them there, or name those hosts with --hide\n"
    assert matrix(tmp_path / "there", "import", file) == (0, f"{file}: 1 run added, 0 here already\n", "")
    assert matrix(tmp_path / "there", "import", file) == (0, f"{file}: 0 runs added, 1 here already\n", "")


def test_cells_are_exported_alone(
    matrix: Matrix, kept: Path, tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    results = Results(kept)
    of_another = make_record("r3", cell="cpu-tuned")
    results.begin(of_another.intent)
    results.finish(of_another)
    files = [str(tmp_path / f"{name}.tar.gz") for name in "abc"]
    assert matrix(kept, "export", files[0])[1].startswith("2 runs in ")
    _, out, err = matrix(kept, "export", files[1], "cpu-tuned", "rocm6.3-torch2.9.1-plain")
    assert out.startswith("1 run in ")
    assert err == "matrix: left out: rocm6.3-torch2.9.1-plain: no finished run\n"
    assert matrix(tmp_path / "there", "import", files[1])[0] == 0
    (verdict,) = json.loads(matrix(tmp_path / "there", "status", "--json")[1])["verdicts"]
    assert verdict["cell"] == "cpu-tuned"
    code, _, err = matrix(kept, "export", files[2], "cpu-plian")
    assert (code, err) == (2, "matrix: unknown cell 'cpu-plian'; did you mean cpu-plain?\n")
    assert (
        "no finished run of rocm6.3-torch2.9.1-plain to export"
        in matrix(kept, "export", files[2], "rocm6.3-torch2.9.1-plain")[2]
    )


def test_both_tell_it_as_json(matrix: Matrix, kept: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "a.tar.gz")
    exported = json.loads(matrix(kept, "export", file, "--json", "--hide", "other")[1])
    assert (exported["runs"], exported["left_out"], exported["file"]) == (2, [], file)
    (imported,) = json.loads(matrix(tmp_path / "there", "import", file, "--json")[1])["imported"]
    assert imported["sha256"] == exported["sha256"]
    assert (len(imported["runs"]), imported["duplicates"], imported["differing"]) == (2, 0, [])


def test_a_file_that_is_no_archive_is_one_line(matrix: Matrix, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_text("text", encoding="utf-8")
    code, out, err = matrix(tmp_path / "there", "import", str(tmp_path / "a.tar.gz"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("matrix: ")


def test_imported_runs_can_be_left_out_of_the_status(matrix: Matrix, kept: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "a.tar.gz")
    matrix(kept, "export", file)
    matrix(tmp_path / "there", "import", file)
    (verdict,) = json.loads(matrix(tmp_path / "there", "status", "--json")[1])["verdicts"]
    assert (verdict["runs"], verdict["imported"]) == (1, 1)
    assert json.loads(matrix(tmp_path / "there", "status", "--json", "--without-imported")[1])["verdicts"] == []
