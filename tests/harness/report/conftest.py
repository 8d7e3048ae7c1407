"""Fixtures of the tests of reports: synthetic rows, and reports on records."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.cells import Matrix
from harness.report.build import build_report
from harness.report.model import Report
from harness.report.reader import Reader
from tests.harness.report.synthetic import write_runs


@pytest.fixture
def make_rows(make_record: Callable[..., Record], matrix: Matrix) -> Callable[..., list[Row]]:
    """Return a function that makes rows of one cell: first `passes` that completed, then `failures` that failed.

    Keywords replace fields of the intents.
    """
    number = 0

    def make(cell: str, passes: int, failures: int = 0, diagnosis: str = "crash", **intent: Any) -> list[Row]:
        nonlocal number
        preset = next(name for name in matrix.presets if cell.endswith(f"-{name}"))
        stack = cell.removesuffix(f"-{preset}")
        rows = []
        for index in range(passes + failures):
            number += 1
            ended = {} if index < passes else {"outcome": "failed", "diagnosis": diagnosis}
            told = {"cell": cell, "stack": stack, "preset": preset, "started": 1e9 + number, **intent}
            # On two boots, because known-good takes runs on two.
            rows.append(Row.of(make_record(f"r{number}", **ended, **told))._replace(boot_id=f"boot {number % 2}"))
        return rows

    return make


@pytest.fixture
def report_of(tmp_path: Path, matrix: Matrix) -> Callable[..., Report]:
    """Return a function that builds the report on the given records."""

    def make(
        records: Iterable[Record],
        current: Mapping[tuple[str, str], str] | None = None,
        steps: Iterable[HealthStep] = (),
        imported: Iterable[str] = (),
        struck: Mapping[str, str] | None = None,
    ) -> Report:
        results, records = Results(tmp_path), list(records)
        for record in records:
            folder = results.run_folder(record.intent.run_id)
            folder.mkdir(parents=True)
            for name, value in ((RunFolder.INTENT, record.intent), (RunFolder.RECORD, record)):
                (folder / name).write_text(value.model_dump_json(by_alias=True), encoding="utf-8")
        elsewhere = set(imported)
        rows = [
            Row.of(record, imported=record.intent.run_id in elsewhere, struck=(struck or {}).get(record.intent.run_id))
            for record in records
        ]
        return build_report(results, rows, matrix, current or {}, count_runs(rows, steps), Reader(1e9))

    return make


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory, matrix: Matrix) -> Report:
    """Return the report on synthetic runs of several hosts, whose logs are hostile."""
    results = write_runs(tmp_path_factory.mktemp("synthetic"), matrix, 360)
    rows = [Row.of(record, imported=results.imported(record.intent.run_id)) for record in results.records()]
    return build_report(results, rows, matrix, {}, count_runs(rows), Reader(1e9))
