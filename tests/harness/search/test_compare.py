"""Tests of whether two cells differ."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy.stats import binom, fisher_exact

from harness.base.wording import percent
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.matrix.cells import Verdicts
from harness.search.compare import CellComparison, compare, detectable_rate
from harness.search.sequential import BinomialCount


@pytest.fixture
def verdict(make_record: Callable[..., Record]) -> Callable[..., Verdict]:
    """Return a function that makes the verdict of a cell with these passes and runs; keywords replace other fields."""
    made = judge([Row.of(make_record(), imported=False)], {}, Verdicts())[0]

    def make(cell: str, passes: int, runs: int, **changes: object) -> Verdict:
        return replace(made, cell=cell, passes=passes, runs=runs, **changes)  # type: ignore[arg-type]

    return make


def one(*verdicts: Verdict) -> CellComparison:
    (compared,) = compare(verdicts, "a", ["b"])
    return compared


def test_a_difference_is_shown_by_fishers_test(verdict: Callable[..., Verdict]) -> None:
    compared = one(verdict("a", 10, 10), verdict("b", 3, 10))
    assert compared.p_value == fisher_exact([[10, 0], [3, 7]]).pvalue
    assert compared.differ
    few = one(verdict("a", 3, 3), verdict("b", 0, 3))
    assert not few.differ
    assert few.told_apart is None
    enough = BinomialCount(20, 20)
    told = percent(detectable_rate(enough, enough) or 0)
    assert few.conclusion.endswith(f"; 20 runs of each tell {told} from 100 %, where only two are compared")


@pytest.mark.parametrize(("passes", "others", "runs"), [(0, 0, 40), (5, 5, 10), (2, 0, 40)])
def test_many_runs_that_seldom_pass_are_not_called_few(
    passes: int, others: int, runs: int, verdict: Callable[..., Verdict]
) -> None:
    assert fisher_exact([[runs, 0], [0, runs]]).pvalue < 0.05
    compared = one(verdict("a", passes, runs), verdict("b", others, runs))
    assert compared.told_apart is None
    assert compared.conclusion.endswith(
        "; no lower pass rate would have been told from that of the better with probability .8"
    )


def test_only_what_was_run_alike_is_compared(verdict: Callable[..., Verdict]) -> None:
    other = verdict("b", 0, 20)
    for changes in (
        {"workload_hash": "w"},
        {"host_kind": "h"},
        {"executor": "docker"},
        {"scope": "gfx1100"},
        {"stale": True},
    ):
        assert compare([verdict("a", 20, 20, **changes), other], "a", ["b"]) == []
    assert compare([verdict("a", 0, 0), other], "a", ["b"]) == []


def test_passes_of_runs_that_nothing_verified_are_named(verdict: Callable[..., Verdict]) -> None:
    sound = verdict("b", 3, 10, verified=True)
    assert "verified" not in one(verdict("a", 10, 10, verified=True), sound).in_words
    assert "verified" not in one(verdict("a", 10, 10, verified=False, own_program=True), sound).in_words
    doubtful = one(verdict("a", 10, 10, verified=False), sound)
    assert doubtful.in_words.endswith("p = 0.0031; not all runs of a were verified")
    assert doubtful.plain["unverified"] == ("a",)


def test_several_comparisons_are_corrected_for(verdict: Callable[..., Verdict]) -> None:
    verdicts = [verdict("a", 20, 20), verdict("b", 15, 20), verdict("c", 19, 20), verdict("d", 5, 20)]
    compared = {c.other: c for c in compare(verdicts, "a", ["b", "c", "d"])}
    alone = one(*verdicts[:2])
    assert alone.differ
    assert not compared["b"].differ
    assert compared["b"].adjusted == pytest.approx(2 * alone.p_value)
    assert compared["d"].adjusted == pytest.approx(3 * compared["d"].p_value)
    assert compared["d"].differ
    assert compared["c"].adjusted == 1.0
    rate = detectable_rate(BinomialCount(20, 20), BinomialCount(19, 20), 3) or 0
    assert compared["c"].conclusion.endswith(
        f"; a pass rate of {percent(rate)} would have been told from that of the better with probability .8"
    )


@pytest.mark.parametrize(("runs", "others", "comparisons"), [(10, 10, 1), (14, 14, 1), (20, 8, 1), (14, 14, 3)])
def test_the_power_is_that_of_the_very_test(runs: int, others: int, comparisons: int) -> None:
    """The power is computed over every possible outcome, weighed by its probability."""
    rate = detectable_rate(BinomialCount(runs, runs), BinomialCount(0, others), comparisons)
    assert rate is not None

    def power(rate: float) -> float:
        found = (fisher_exact([[runs, 0], [k, others - k]]).pvalue * comparisons <= 0.05 for k in range(others + 1))
        return sum(float(binom.pmf(k, others, rate)) for k, is_found in enumerate(found) if is_found)

    assert power(rate) >= 0.8
    assert power(rate + 0.01) < 0.8


@pytest.mark.slow
def test_more_runs_tell_more_apart() -> None:
    rates = [detectable_rate(BinomialCount(n, n), BinomialCount(n, n)) or 0.0 for n in (4, 8, 16, 32, 64)]
    assert rates == sorted(rates)
    assert rates[-1] > 0.85
    assert detectable_rate(BinomialCount(30, 40), BinomialCount(28, 40)) == detectable_rate(
        BinomialCount(28, 40), BinomialCount(30, 40)
    )
