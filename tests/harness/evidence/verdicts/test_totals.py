from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.missing import Shortfall, missing_to
from harness.evidence.verdicts.totals import Life, Totals, totals_of
from harness.matrix.cells import Verdicts


@pytest.fixture
def row(make_record: Callable[..., Record]) -> Row:
    """Return a run that completed after an hour of training."""
    return Row.of(make_record())


def totals(*rows: Row) -> Totals:
    rows = tuple(row._replace(run_id=f"r{number}") for number, row in enumerate(rows))
    return totals_of(rows, count_runs(rows))


def test_a_failure_before_the_end_of_the_first_step_is_one_to_start(row: Row) -> None:
    failed = row._replace(outcome="failed", first_step=False, exposure_seconds=0.0)
    assert totals(row, failed) == Totals(1, 2, 0, (Life(1.0),), 1, 0)


def test_a_failure_after_it_is_one_in_the_hours_of_training(row: Row) -> None:
    hung = row._replace(outcome="hung", exposure_seconds=1800.0)
    found = totals(row, hung)
    assert (found.started, found.starts, found.failures, found.hours) == (2, 2, 1, 1.5)
    assert found.lives == (Life(1.0), Life(0.5, failed=True))


def test_a_run_that_completed_and_poisoned_its_gpu_started_and_failed(row: Row) -> None:
    counts = {row.run_id: count_runs([row._replace(outcome="host-fault")])[row.run_id]}
    found = totals_of([row], counts)
    assert (found.started, found.starts, found.failures, found.hours) == (1, 1, 1, 1.0)


def test_a_run_that_was_resumed_behind_its_last_step_is_no_start(row: Row) -> None:
    resumed = row._replace(first_step=False, exposure_seconds=0.0)
    assert (totals(row, resumed).started, totals(row, resumed).starts) == (1, 1)
    assert totals(row, resumed._replace(own_program=True)).starts == 2


def test_of_an_interrupted_run_only_the_hours_count(row: Row) -> None:
    interrupted = row._replace(outcome="interrupted", interrupted_by="ctrl-c", exposure_seconds=7200.0)
    found = totals(row, interrupted)
    assert (found.started, found.starts, found.failures, found.hours) == (1, 1, 0, 3.0)
    stuck = interrupted._replace(idle_seconds=100.0, idle_limit=180.0)
    assert (totals(row, stuck).starts, totals(row, stuck).failures, totals(row, stuck).hours) == (2, 1, 3.0)
    ended = interrupted._replace(interrupted_by="hup", device="cuda")
    assert totals(row, ended).failures == 1


def test_of_a_run_that_was_not_verified_only_a_failure_counts(row: Row) -> None:
    unverified = row._replace(verified=False)
    interrupted = unverified._replace(outcome="interrupted", interrupted_by="ctrl-c")
    assert totals(row, unverified, interrupted) == totals(row)
    assert totals(row, unverified._replace(outcome="hung")) == totals(row, row._replace(outcome="hung"))
    assert totals(unverified._replace(own_program=True)) == totals(row)


@pytest.mark.parametrize("changes", [{"struck": "x"}, {"injected_fault": "crash@3"}])
def test_of_what_does_not_count_nothing_does(changes: dict[str, str], row: Row) -> None:
    assert totals(row._replace(**changes)) == Totals()  # type: ignore[arg-type]


def test_a_run_of_which_no_hours_are_known_is_a_start(row: Row) -> None:
    assert totals(row._replace(exposure_seconds=None)) == Totals(1, 1, 0, (), 1, 0)
    unknown = row._replace(outcome="failed", first_step=None, exposure_seconds=None)
    assert totals(unknown) == Totals(0, 1, 0, (), 1, 0)


def test_failures_of_one_burst_are_one_incident(row: Row) -> None:
    failed = [row._replace(outcome="failed", finished=1e9 + 60 * minute) for minute in (0, 10, 25, 41, 100)]
    found = totals(*failed)
    assert (found.failures, found.incidents) == (5, 3)
    assert totals(row).incidents == 0


def test_what_a_failure_costs_is_the_time_that_it_did_not_train(row: Row) -> None:
    hung = row._replace(outcome="hung", exposure_seconds=3600.0)
    costs = [hung._replace(finished=row.started + 3600 + cost) for cost in (60, 90, 300)]
    assert totals(row, *costs).restart_seconds == 90
    assert totals(row).restart_seconds is None


def test_boots_are_those_of_the_runs_that_count(row: Row) -> None:
    elsewhere = row._replace(boot_id="another", outcome="interrupted")
    assert totals(row, elsewhere).boots == 1
    assert totals(row, row._replace(boot_id="another")).boots == 2
    # A start that fails shows no cell that works after a reboot.
    assert totals(row, row._replace(boot_id="another", outcome="failed", first_step=False)).boots == 1
    assert totals(row, row._replace(boot_id="another", outcome="failed", first_step=True)).boots == 2


def test_a_claim_is_about_trainings_as_long_as_the_third_longest_run(row: Row) -> None:
    lengths = [row._replace(exposure_seconds=3600.0 * hours) for hours in (1, 5, 3, 2)]
    assert totals(*lengths).longest == 2.0
    assert totals(*lengths[:2]).longest == 0.0


@pytest.mark.parametrize("started", [0, 3, 33, 60])
@pytest.mark.parametrize("failed", [0, 1, 3])
@pytest.mark.parametrize("hours", [0.0, 2.0, 30.0])
def test_what_is_missing_is_enough_and_not_less(started: int, failed: int, hours: float) -> None:
    """Every failure here is one after the first step."""
    thresholds = Verdicts()
    before = Totals(started, started, failed, (Life(hours),), boots=1)
    missing = missing_to(before, "known_good", thresholds, 0.95)
    starts = started + missing.starts
    after = Totals(starts, starts, failed, (Life(hours), Life(missing.hours + 1e-6)), boots=1 + missing.boots)
    assert missing_to(after, "known_good", thresholds, 0.95).is_empty
    if missing.starts:
        fewer = replace(after, started=starts - 1, starts=starts - 1)
        assert missing_to(fewer, "known_good", thresholds, 0.95) == Shortfall(1, 0.0, 0)
    if missing.hours:
        fewer = replace(after, lives=(Life(hours), Life(missing.hours * 0.99)))
        assert missing_to(fewer, "known_good", thresholds, 0.95).hours > 0
    assert missing.boots == 1
