import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.evidence.verdicts import rates
from harness.evidence.verdicts.kept_bounds import kept_bounds
from harness.evidence.verdicts.rates import lower_bound


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "known", {})


def computed(*runs: tuple[int, int]) -> list[float]:
    return [lower_bound(*counts, 0.95) for counts in runs]


def test_what_one_process_computed_the_next_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_bounds(tmp_path):
        before = computed((3, 3), (7, 9))
    monkeypatch.setattr(rates, "known", {})
    monkeypatch.setattr(rates, "_lower_bound", lambda *_: pytest.fail("computed again"))
    with kept_bounds(tmp_path):
        assert computed((3, 3), (7, 9)) == before


@pytest.mark.parametrize("content", [b"", b"{", b"[[1, 2]]", b'{"a": 1}', b"null", b'[["a", 2, 3, 4]]'])
def test_a_damaged_file_costs_time_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    expected = computed((3, 3))
    rates.known.clear()
    with kept_bounds(tmp_path):
        computed((3, 3))
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    rates.known.clear()
    with kept_bounds(tmp_path):
        assert computed((3, 3)) == expected
    assert json.loads(file.read_bytes()) == [[3, 3, 0.95, expected[0]]]


def test_where_nothing_can_be_kept_bounds_are_computed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with kept_bounds(tmp_path / "file"):
        assert computed((3, 3))[0] > 0


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    with kept_bounds(tmp_path):
        computed((3, 3))
    (file,) = tmp_path.iterdir()
    before = file.stat().st_mtime_ns
    with kept_bounds(tmp_path):
        computed((3, 3))
    assert file.stat().st_mtime_ns == before


def test_what_status_imports_is_light() -> None:
    """A command that is typed often is not to wait for what it does not use."""
    heavy = ("scipy", "numpy", "docker", "plotly", "harness.campaign.bench")
    code = f"import sys, harness.cli.main, harness.cli.status; print([name for name in {heavy} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"
