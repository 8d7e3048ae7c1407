"""Tests of running all checks: their order, when the probe stops, and what it reports."""

from vpoc.probes import run_all as module
from vpoc.probes.check import CheckResult
from vpoc.probes.run_all import conclusion, exit_code, run_checks


def run_all_checks(checks, interrupted=lambda: False):
    announced = []
    results = list(run_checks(checks, "cpu", 1.0, interrupted, lambda check: announced.append(check.name)))
    return results, announced


def outcomes(results):
    return [(result.check, result.outcome) for result in results]


def test_it_continues_after_a_broken_check(faulty):
    checks = [faulty("passes"), faulty("gives_a_wrong_number"), faulty("skips"), faulty("segfaults")]
    results, announced = run_all_checks(checks)
    assert outcomes(results) == [
        ("passes", "passed"),
        ("gives_a_wrong_number", "wrong-result"),
        ("skips", "skipped"),
        ("segfaults", "crashed"),
    ]
    assert announced == [check.name for check in checks]
    assert exit_code(results) == 1
    assert conclusion(results, checks, "cpu") == (
        "This stack breaks on cpu at the check gives_a_wrong_number (for a test): wrong-result. 1 of 4 checks passed, "
        "1 skipped. Also broken: segfaults."
    )


def test_it_ends_where_nothing_later_can_work(faulty):
    checks = [faulty("exits_with_1", essential=True), faulty("passes")]
    results, announced = run_all_checks(checks)
    assert outcomes(results) == [("exits_with_1", "failed"), ("passes", "skipped")]
    assert results[1].detail == "not tried: nothing works without the check exits_with_1, which broke"
    assert announced == ["exits_with_1"]
    assert exit_code(results) == 1


def test_no_device_is_exit_code_3(faulty):
    results, _ = run_all_checks([faulty("finds_no_device", essential=True), faulty("passes")])
    assert exit_code(results) == 3


def test_all_is_well(faulty):
    checks = [faulty("passes"), faulty("skips")]
    results, _ = run_all_checks(checks)
    assert exit_code(results) == 0
    assert conclusion(results, checks, "cpu") == "1 of 2 checks passed, 1 skipped; nothing broke on cpu."


def test_nothing_is_tried_beside_a_process_that_cannot_be_killed(faulty, monkeypatch):
    stuck = CheckResult("sleeps", "hung", 1.0, 1.0, "did not end", killable=False)
    monkeypatch.setattr(module, "run_check", lambda *_: stuck)
    results, announced = run_all_checks([faulty("sleeps"), faulty("passes")])
    assert announced == ["sleeps"]
    assert results[1].detail == "not tried: a process of the check sleeps cannot be killed and may hold the device"


def test_an_interruption_ends_the_checks(faulty):
    calls = iter([False, False, False] + [True] * 1000)
    results, announced = run_all_checks([faulty("sleeps"), faulty("passes")], lambda: next(calls))
    assert (results, announced) == ([], ["sleeps"])
