"""The cell that the last campaign's conclusion names, remembered for a machine in its results folder."""

from pathlib import Path

from harness.base.json_bounds import load_json
from harness.base.storage import read_regular, write_json
from harness.evidence.records import Results
from harness.evidence.verdicts.recommend import NamedCell


def remember_answer(results: Results, machine: str, named: NamedCell | None) -> None:
    """Write it; None where the conclusion names no cell."""
    write_json(_file(results, machine), {"schema": 2, "named": vars(named) if named else None})


def last_answer(results: Results, machine: str) -> NamedCell | None:
    """Return it; None where no campaign was concluded, or its conclusion names no cell."""
    try:
        named = load_json(read_regular(_file(results, machine)))["named"]
        return NamedCell(str(named["cell"]), str(named["strategy"])) if named else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(results: Results, machine: str) -> Path:
    return results.folder / "campaigns" / f"{machine}.answer"
