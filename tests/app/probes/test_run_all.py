"""The whole ladder: its order, when it ends, and what it says."""

from vpoc.probes import run_all as module
from vpoc.probes.check import CheckResult
from vpoc.probes.run_all import conclusion, exit_code, run_checks


def climbed(rungs, interrupted=lambda: False):
    announced = []
    trials = list(run_checks(rungs, "cpu", 1.0, interrupted, lambda rung: announced.append(rung.name)))
    return trials, announced


def outcomes(trials):
    return [(trial.rung, trial.outcome) for trial in trials]


def test_it_goes_on_after_a_broken_rung(faulty):
    rungs = [faulty("passes"), faulty("gives_a_wrong_number"), faulty("skips"), faulty("segfaults")]
    trials, announced = climbed(rungs)
    assert outcomes(trials) == [
        ("passes", "passed"),
        ("gives_a_wrong_number", "wrong-result"),
        ("skips", "skipped"),
        ("segfaults", "crashed"),
    ]
    assert announced == [rung.name for rung in rungs]
    assert exit_code(trials) == 1
    assert conclusion(trials, rungs, "cpu") == (
        "This stack breaks on cpu at the rung gives_a_wrong_number (for a test): wrong-result. 1 of 4 rungs passed, "
        "1 skipped. Also broken: segfaults."
    )


def test_it_ends_where_nothing_later_can_work(faulty):
    rungs = [faulty("exits_with_1", essential=True), faulty("passes")]
    trials, announced = climbed(rungs)
    assert outcomes(trials) == [("exits_with_1", "failed"), ("passes", "skipped")]
    assert trials[1].detail == "not tried: nothing works without the rung exits_with_1, which broke"
    assert announced == ["exits_with_1"]
    assert exit_code(trials) == 1


def test_no_device_is_exit_code_3(faulty):
    trials, _ = climbed([faulty("finds_no_device", essential=True), faulty("passes")])
    assert exit_code(trials) == 3


def test_all_is_well(faulty):
    rungs = [faulty("passes"), faulty("skips")]
    trials, _ = climbed(rungs)
    assert exit_code(trials) == 0
    assert conclusion(trials, rungs, "cpu") == "1 of 2 rungs passed, 1 skipped; nothing broke on cpu."


def test_nothing_is_tried_beside_a_process_that_cannot_be_killed(faulty, monkeypatch):
    stuck = CheckResult("sleeps", "hung", 1.0, 1.0, "did not end", killable=False)
    monkeypatch.setattr(module, "try_rung", lambda *_: stuck)
    trials, announced = climbed([faulty("sleeps"), faulty("passes")])
    assert announced == ["sleeps"]
    assert trials[1].detail == "not tried: a process of the rung sleeps cannot be killed and may hold the device"


def test_an_interruption_ends_the_climb(faulty):
    calls = iter([False, False, False] + [True] * 1000)
    trials, announced = climbed([faulty("sleeps"), faulty("passes")], lambda: next(calls))
    assert (trials, announced) == ([], ["sleeps"])
