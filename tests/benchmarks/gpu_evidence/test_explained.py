from pathlib import Path

import pytest

from benchmarks.gpu_evidence.call import _leave
from benchmarks.gpu_evidence.checks import harness_run
from benchmarks.gpu_evidence.checks.breaking import EXPECTED
from benchmarks.gpu_evidence.checks.harness_run import CHECKOUT, explained

LOGS = {
    "device-assert": "RuntimeError: CUDA error: device-side assert triggered",
    "illegal-access": "RuntimeError: CUDA error: an illegal memory access was encountered",
}


@pytest.mark.slow
@pytest.mark.skipif(not (CHECKOUT / ".venv/bin/python").exists(), reason="the harness is not set up")
@pytest.mark.parametrize("kind", LOGS)
def test_the_harness_is_asked_for_the_class(tmp_path, kind):
    (tmp_path / "log.txt").write_text(LOGS[kind])
    assert explained(tmp_path / "log.txt") == EXPECTED[kind]


def test_without_a_harness_there_is_no_class(tmp_path, monkeypatch):
    (tmp_path / "log.txt").write_text("a line")
    monkeypatch.setattr(harness_run, "harness", lambda: ["/usr/bin/false"])
    assert explained(tmp_path / "log.txt") is None


def test_numbers_that_json_has_no_word_for_are_text(tmp_path):
    _leave(tmp_path, "row", {"norm": float("inf"), "loss": 0.5})
    assert Path(tmp_path / "row.json").read_text() == '{"norm": "inf", "loss": 0.5}'
