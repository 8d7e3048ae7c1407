"""Tests of the search for the variables that matter, on synthetic histories."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.search.least_failing import MOST_ERROR
from harness.search.minimise import Minimum, VariableSet, minimise_variables

NAMES = [f"V{number}" for number in range(8)]
PassRate = Callable[[VariableSet], float]


def run_search(rate: PassRate, seed: int, max_runs: int = 300) -> Minimum:
    random = Random(seed)
    return minimise_variables(NAMES, lambda variables: random.random() < rate(variables), max_runs, seed)


def planted(cause: set[str], failure_rate: float, *, helps: bool) -> PassRate:
    """Return pass rates: runs fail at `failure_rate` if all variables of the cause are set (`helps`: if not)."""
    return lambda variables: 1 - failure_rate if (cause <= variables) != helps else 1.0


def answers(rate: PassRate, times: int, max_runs: int = 300) -> Counter[str]:
    found = [run_search(rate, seed, max_runs) for seed in range(times)]
    return Counter(" ".join(sorted(one.variables)) if one.conclusion == "found" else one.conclusion for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("helps", [False, True])
@pytest.mark.parametrize("failure_rate", [0.5, 0.9])
@pytest.mark.parametrize("cause", [{"V3"}, {"V1", "V6"}, {"V0", "V4", "V7"}])
def test_a_planted_cause_is_found(cause: set[str], failure_rate: float, helps: bool) -> None:
    counted = answers(planted(cause, failure_rate, helps=helps), 100)
    right = counted.pop(" ".join(sorted(cause)), 0)
    honest = counted.pop("not-enough-runs", 0)
    assert right >= 80
    assert right + honest >= 95, counted


@pytest.mark.parametrize("rate", [1.0, 0.9, 0.5, 0.1, 0.0])
def test_where_nothing_matters_nothing_is_found(rate: float) -> None:
    found = [run_search(lambda _: rate, seed) for seed in range(100)]
    counted = Counter(one.conclusion for one in found)
    assert counted["found"] <= MOST_ERROR * 100
    assert counted["no-difference"] >= 85
    assert all(one.effect is None for one in found if one.conclusion == "no-difference")


def test_a_search_for_an_effect_says_how_it_stands() -> None:
    said: list[str] = []
    minimise_variables(NAMES, lambda _: True, 300, notify=said.append)
    assert said[:2] == [
        "looking for an effect of 8 variables together",
        "so far 10 of 10 passed with all variables, 10 of 10 passed with none",
    ]


@pytest.mark.slow
def test_rare_failures_take_more_runs_and_it_says_so() -> None:
    rate = planted({"V3"}, 0.1, helps=False)
    few, many = answers(rate, 40), answers(rate, 40, 1500)
    assert few["V3"] + few["not-enough-runs"] >= 36
    assert many["V3"] >= 36


def test_all_of_them_can_matter() -> None:
    assert answers(planted(set(NAMES), 0.9, helps=False), 20)[" ".join(NAMES)] >= 19


def test_a_healthy_run_may_fail_now_and_then() -> None:
    counted = answers(lambda variables: 0.4 if "V2" in variables else 0.95, 60)
    assert counted["V2"] >= 55
    assert counted["V2"] + counted["not-enough-runs"] >= 57


def test_it_says_whether_the_others_do_the_same() -> None:
    found = [run_search(lambda v: 0.5 if v & {"V1", "V5"} else 1.0, seed) for seed in range(30)]
    assert {one.variables for one in found} == {frozenset({"V1"}), frozenset({"V5"})}
    assert sum(one.rest_too is True for one in found) >= 27
    alone = [run_search(planted({"V1"}, 0.9, helps=True), seed) for seed in range(30)]
    assert sum(one.rest_too is False for one in alone) >= 27


def test_what_it_had_no_runs_left_to_look_at_is_not_said() -> None:
    rate = planted({"V1"}, 0.9, helps=False)
    runs = run_search(rate, 1).runs
    found = run_search(rate, 1, runs - 1)
    assert (found.conclusion, found.rest_too) == ("found", None)
    assert found.variables == {"V1"}


def test_what_undoes_another_leaves_no_difference() -> None:
    """The preset as a whole makes no difference, and the search says only that."""
    assert answers(lambda v: 0.2 if "V1" in v and "V2" not in v else 1.0, 20) == {"no-difference": 20}


def test_always_passing_ends_early() -> None:
    found = run_search(lambda _: 1.0, 1)
    assert found.conclusion == "no-difference"
    assert found.runs < 100
    assert found.largest_difference < 0.07


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_variables(size: int) -> None:
    for seed in range(20):
        random = Random(seed)
        names = NAMES[:size]
        found = minimise_variables(names, lambda v, r=random: r.random() < (0.1 if "V0" in v else 1), 200, seed)  # type: ignore[misc]
        assert found.variables == {"V0"}
        assert found.conclusion == "found"


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    rates=st.lists(st.floats(0, 1), min_size=16, max_size=16),
    max_runs=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_whatever_runs_do_it_keeps_to_its_budget_and_goes_on_where_it_stopped(
    rates: list[float], max_runs: int, seed: int
) -> None:
    random = Random(seed)
    names = NAMES[:4]
    history: list[tuple[VariableSet, bool]] = []

    def run(variables: VariableSet) -> bool:
        rate = rates[sum(2**n for n, name in enumerate(names) if name in variables)]
        history.append((variables, random.random() < rate))
        return history[-1][1]

    found = minimise_variables(names, run, max_runs, seed)
    assert found.runs == len(history) <= max_runs
    assert found.variables <= set(names)
    assert (found.conclusion == "no-difference") <= (found.effect is None)
    replayed = iter(history)

    def again(variables: VariableSet) -> bool:
        expected, passed = next(replayed)
        assert expected == variables
        return passed

    assert minimise_variables(names, again, max_runs, seed) == found


ASKED = """
from random import Random
from harness.search.minimise import minimise_variables
random, asked = Random(5), []
def run(variables):
    asked.append(sorted(variables))
    return random.random() < (0.1 if {"V1", "V2", "V6"} <= variables else 1)
minimise_variables([f"V{n}" for n in range(8)], run, 300, "seed")
print(asked)
"""


@pytest.mark.slow
def test_another_process_asks_for_the_same_runs() -> None:
    """Python iterates a set of words in another order in each process."""
    processes = [
        subprocess.run([sys.executable, "-c", ASKED], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    assert processes[0].stdout == processes[1].stdout
    assert len(processes[0].stdout) > 1000


def test_confirmation_is_by_fresh_runs() -> None:
    """No run from before the confirmation counts for it."""
    random, log = Random(3), list[VariableSet | str]()
    cause = frozenset({"V1", "V6"})

    def run(variables: VariableSet) -> bool:
        log.append(variables)
        return random.random() < (0.1 if cause <= variables else 1)

    found = minimise_variables(NAMES, run, 300, 3, log.append)
    since = log[log.index("confirming V1, V6") :]
    assert found.variables == cause
    assert found.confirmed.runs == since.count(cause) < log.count(cause)
    assert {name: one.runs for name, one in found.without.items()} == {
        name: since.count(cause - {name}) for name in cause
    }
    assert all(one.passes == one.runs >= 4 for one in found.without.values())


def test_all_confirmations_together_have_the_error_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[float] = []

    def refute(_: object, __: VariableSet, error: float) -> bool:
        errors.append(error)
        return len(errors) == 6

    monkeypatch.setattr("harness.search.minimise._Search._confirm", refute)
    run_search(planted({"V1"}, 1.0, helps=True), 1)
    assert errors == [MOST_ERROR / 2**attempt for attempt in range(1, 7)]


def test_neither_arm_is_always_first() -> None:
    tried: list[VariableSet] = []

    def run(variables: VariableSet) -> bool:
        tried.append(variables)
        return True

    minimise_variables(NAMES, run, 60, 1)
    firsts = tried[::2]
    assert 5 <= firsts.count(frozenset()) <= len(firsts) - 5
    assert all({one, other} == {frozenset(), frozenset(NAMES)} for one, other in zip(firsts, tried[1::2], strict=True))


def test_it_tells_what_it_does() -> None:
    messages: list[str] = []
    random = Random(1)
    minimise_variables(NAMES, lambda v: random.random() < (0.1 if "V2" in v else 1), 300, 1, messages.append)
    assert [text.split()[0] for text in messages] == ["looking", "screening", "leaving", "confirming", "checking"]


def test_names_are_needed_once_each() -> None:
    for names in ([], ["A", "A"]):
        with pytest.raises(ValueError, match="variables"):
            minimise_variables(names, lambda _: True, 10)
