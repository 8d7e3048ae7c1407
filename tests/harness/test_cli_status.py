from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.contracts import Record
from harness.records import Results
from harness.storage import write_durably


@pytest.fixture
def results(tmp_path: Path, make_record: Callable[..., Record]) -> Results:
    """A run of a cell, and one of a variant of it."""
    results = Results(tmp_path)
    for number, cell in enumerate(("cpu-plain", "cpu-plain~fresh-allocator")):
        record = make_record(run_id=f"r{number}", cell=cell)
        results.begin(record.intent)
        write_durably(results.run_folder(f"r{number}") / "record.json", record.model_dump_json(by_alias=True).encode())
    return results


def test_variants_are_shown_when_asked_for(results: Results) -> None:
    words = ["--results", str(results.folder), "status"]
    shown = CliRunner().invoke(cli, words).output
    assert "cpu-plain" in shown
    assert "fresh-allocator" not in shown
    assert "1 verdicts on variants of cells are not shown" in shown
    every = CliRunner().invoke(cli, [*words, "--variants"]).output
    assert "cpu-plain~fresh-allocator" in every
    assert "not shown" not in every
