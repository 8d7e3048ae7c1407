"""Checks what `make matrix-test` left: records, index and report of at least four completed cells on a CPU.

check_records.py RESULTS EXECUTOR
"""

import json
import sqlite3
import sys
from pathlib import Path

from harness.evidence.index_file import index_file
from harness.evidence.records import Results

CELLS = 4


def main(folder: Path, executor: str) -> None:
    """Fail with an assertion that says what is not there."""
    records = list(Results(folder).records())
    cells = {record.intent.cell for record in records}
    assert len(cells) >= CELLS, f"{len(cells)} cells were run"
    for record in records:
        assert record.outcome == "completed", f"{record.intent.run_id}: {record.outcome}: {record.detail}"
        assert record.intent.stack == "cpu"
        assert record.intent.executor == executor
        assert record.result is not None
        assert record.result.device == "cpu"
        run = Results(folder).run_folder(record.intent.run_id)
        metadata = json.loads((run / "work" / "output" / record.result.metadata_file).read_text(encoding="utf-8"))
        assert metadata["data"]["sha256"] == record.intent.data.sha256
    with sqlite3.connect(index_file(folder)) as database:
        (indexed,) = database.execute("SELECT count(*) FROM runs").fetchone()
    assert indexed == len(records)
    for name in ("report.html", "report.md"):
        text = (folder / name).read_text(encoding="utf-8")
        assert all(cell in text for cell in cells)
        assert "No run used a GPU" in text
    print(f"{len(records)} records of {len(cells)} cells ({executor}), all completed on a CPU, in index and report")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
