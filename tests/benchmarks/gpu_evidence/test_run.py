import pytest

from benchmarks.gpu_evidence import run
from benchmarks.gpu_evidence.rows import row_named
from benchmarks.gpu_evidence.run import Setting, run_row, run_rows
from vpoc.probes.check import HUNG, PASSED, CheckResult

TRAIN, COMPILE = row_named("train-mlp-float32-plain"), row_named("matrix-run-quick")


def setting(folder, device="cuda", until=1e9):
    return Setting(device, folder / "arrays.npz", 4, folder, until)


def ends(monkeypatch, outcome, *, killable=True):
    """Make every row end with this outcome after all the time that it was given; return the list of these times."""
    given = []

    def run_check(check, _device, scale, _interrupted):
        given.append(check.limit_s * scale)
        detail = "did not end" if killable else "did not end; cannot be killed: process 7 in state D"
        return CheckResult(check.name, outcome, given[-1], check.limit_s, detail, ("a stack",), killable=killable)

    monkeypatch.setattr(run, "run_check", run_check)
    return given


@pytest.mark.parametrize(
    ("device", "row", "left", "seconds", "verdict"),
    [
        ("cuda", TRAIN, 1000, 120, "differs"),
        ("cuda", TRAIN, 70, 70, "differs"),
        ("cuda", TRAIN, 50, 50, "not-reached"),
        ("cuda", COMPILE, 200, 200, "not-reached"),
        ("cuda", COMPILE, 1000, 300, "differs"),
        ("cpu", TRAIN, 200, 200, "not-reached"),
        ("cpu", TRAIN, 1000, 300, "differs"),
    ],
)
def test_a_row_that_does_not_end_hangs_unless_it_was_cut_short(
    monkeypatch, tmp_path, device, row, left, seconds, verdict
):
    given = ends(monkeypatch, HUNG)
    judged = run_row(row, setting(tmp_path, device), left, lambda: False)
    assert given == [pytest.approx(seconds)]
    assert judged.verdict == verdict
    assert judged.last_lines == ("a stack",)


@pytest.mark.parametrize("outcome", [HUNG, PASSED])
def test_nothing_follows_a_process_that_cannot_be_killed(monkeypatch, tmp_path, outcome):
    ends(monkeypatch, outcome, killable=False)
    first, second = run_rows([TRAIN, COMPILE], setting(tmp_path), lambda: False, lambda _row: None)
    assert "cannot be killed" in first.detail
    assert second.verdict == "not-reached"
    assert "may hold the device" in second.detail


def test_destructive_rows_wait_until_they_are_asked_for_and_nobody_uses_the_gpu(monkeypatch, tmp_path):
    ends(monkeypatch, PASSED)
    row = row_named("endless-kernel")
    (kept,) = run_rows([row], setting(tmp_path), lambda: False, lambda _row: None)
    assert kept.detail == "breaks the GPU: only with --destructive"
    monkeypatch.setattr(run, "why_not", lambda _device, _hip: "a display is connected (0000:03:00.0)")
    asked = Setting("cuda", tmp_path, 4, tmp_path, 1e9, destructive=True, hip="6.3")
    (kept,) = run_rows([row], asked, lambda: False, lambda _row: None)
    assert kept.detail == "breaks the GPU, and a display is connected (0000:03:00.0)"
    monkeypatch.setattr(run, "why_not", lambda _device, _hip: None)
    (broken,) = run_rows([row], asked, lambda: False, lambda _row: None)
    assert broken.verdict == "held"
