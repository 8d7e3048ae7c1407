from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from harness.evidence.files.run_files import Record
from harness.evidence.host_state import HostState
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import RunCount
from harness.evidence.verdicts.totals import Life, Totals
from harness.evidence.verdicts.verdict import Tier, Verdict, judge, tier_of
from harness.matrix.cells import Verdicts
from harness.screen.tables import verdicts_table

Make = Callable[..., Record]


def judged(
    rows: Iterable[Row], current: Mapping[tuple[str, str], str], counts: Mapping[str, RunCount] | None = None
) -> list[Verdict]:
    return judge(rows, current, Verdicts(), counts)


@pytest.fixture
def row(make_record: Make) -> Row:
    return Row.of(make_record())


def test_runs_of_one_identity_are_counted_together(row: Row) -> None:
    rows = [row, row._replace(run_id="r2", outcome="failed", diagnosis="crash"), row._replace(run_id="r3")]
    (status,) = judged(rows, {})
    assert (status.passes, status.runs, status.run_ids) == (2, 3, (row.run_id, "r2", "r3"))
    assert {name: n for name, n in status.outcomes.items() if n} == {"completed": 2, "failed": 1}
    assert status.diagnoses == {"crash": 1}


def test_runs_that_nothing_verified_qualify_for_nothing_and_count_all_the_same(make_record: Make) -> None:
    options = {"loop": "plain", "vpoc_path": "naive"}
    sound = Row.of(make_record(options={**make_record().intent.options, **options}))
    assert (sound.qualifies_for_promotion, sound.verified) == (True, True)
    for unknown in ({"contract": 1}, {"contract": 3}, {"nonce": None}):
        old = Row.of(make_record("r0", options={**make_record().intent.options, **options}, **unknown))
        assert (old.qualifies_for_promotion, old.verified) == (False, False)
        (one,) = judged([old, sound], {})
        assert (one.passes, one.runs, one.qualifies_for_promotion, one.verified) == (2, 2, False, False)
        (one,) = judged([old._replace(struck="no verifier yet"), sound], {})
        assert (one.passes, one.runs, one.qualifies_for_promotion, one.verified) == (1, 1, True, True)
    assert all((one.qualifies_for_promotion, one.verified) == (True, True) for one in judged([sound], {}))


def test_runs_in_an_image_of_uncommitted_changes_are_apart_and_seen_at_most(make_record: Make) -> None:
    def rows(name: str, revision: str | None) -> list[Row]:
        made = [Row.of(make_record(f"{name}{n}", executor="docker", revision=revision)) for n in range(60)]
        return [row._replace(boot_id=f"boot{n % 2}", exposure_seconds=3600.0) for n, row in enumerate(made)]

    commit = "c" * 40
    (dirty,) = judged(rows("d", f"{commit}-dirty"), {})
    (clean,) = judged(rows("c", commit), {})
    assert (dirty.tier, dirty.uncommitted, dirty.qualifies_for_promotion) == ("seen", True, False)
    assert (clean.tier, clean.uncommitted) == ("known-good", False)
    # They do not change the verdict on the runs of the commit.
    both = judged([*rows("d", f"{commit}-dirty"), *rows("c", commit)], {})
    assert [(one.tier, one.runs) for one in both] == [("known-good", 60), ("seen", 60)]
    # Failures count with uncommitted changes, too.
    failed = [row._replace(outcome="failed", diagnosis="crash") for row in rows("d", f"{commit}-dirty")]
    assert [one.tier for one in judged(failed, {})] == ["failing"]


@pytest.mark.parametrize("field", ["environment_hash", "family", "host_kind", "executor", "scope"])
def test_evidence_of_different_identity_is_never_pooled(field: str, row: Row) -> None:
    changes = {field: "another"}
    assert [s.runs for s in judged([row, row._replace(run_id="r2", **changes)], {})] == [1, 1]  # type: ignore[arg-type]


def test_records_of_an_environment_that_changed_are_stale(row: Row) -> None:
    old = row._replace(run_id="r0", environment_hash="old")
    statuses = judged([old, row], {(row.cell, row.executor): row.environment_hash})
    assert {s.environment_hash: s.stale for s in statuses} == {"old": True, row.environment_hash: False}


def test_where_it_is_not_known_what_a_cell_would_be_now_the_newest_counts(row: Row) -> None:
    old = row._replace(run_id="r0", environment_hash="old", started=row.started - 1)
    statuses = judged([row, old], {})
    assert {s.environment_hash: s.stale for s in statuses} == {"old": True, row.environment_hash: False}


def in_state(row: Row, run_id: str, mes: str, **changes: object) -> Row:
    state = HostState("6.8", None, {}, {"amdgpu.mes": mes})
    return row._replace(run_id=run_id, host_state=state.as_json, **changes)  # type: ignore[arg-type]


def test_runs_from_before_a_parameter_changed_on_their_host_are_stale(row: Row) -> None:
    rows = [in_state(row, "r1", "0"), in_state(row, "r2", "1"), in_state(row, "r3", "0", machine="another")]
    now = {row.machine: {"amdgpu.mes": "1"}}
    before, since = sorted(judge(rows, {}, Verdicts(), settings=now), key=lambda one: one.run_ids)
    assert (before.run_ids, before.stale, before.changed) == (("r1",), True, ("amdgpu.mes was 0, is 1",))
    # r3 still counts, together with r2: on its machine nothing changed, and both hosts are of one kind.
    assert (since.run_ids, since.stale, since.changed) == (("r2", "r3"), False, ())
    # Nothing has to run after the change for that.
    (alone,) = judge(rows[:1], {}, Verdicts(), settings=now)
    assert (alone.stale, alone.changed) == (True, before.changed)


def test_a_host_that_is_not_known_is_as_in_its_newest_run(row: Row) -> None:
    rows = [in_state(row, f"r{n}", mes, started=float(n)) for n, mes in enumerate("0100")]
    assert {one.run_ids: one.stale for one in judge(rows, {}, Verdicts())} == {("r0", "r2", "r3"): False, ("r1",): True}
    on_cpu = row._replace(run_id="r9", started=9.0)
    assert [one.stale for one in judge([rows[1], on_cpu], {}, Verdicts())] == [False]


def test_an_injected_fault_is_evidence_of_nothing(row: Row) -> None:
    injected = row._replace(
        run_id="r2", outcome="failed", diagnosis="injected-fault", injected_fault="flip-gradient@3/1"
    )
    assert [status.runs for status in judged([row, injected], {})] == [1]
    assert judged([injected], {}) == []


def test_runs_that_were_struck_out_are_counted_apart(row: Row) -> None:
    failed = row._replace(run_id="r2", outcome="failed", diagnosis="crash")
    struck = failed._replace(run_id="r3", diagnosis="out-of-memory", struck="a power cut")
    (status,) = judged([row, failed, struck], {})
    assert {name: n for name, n in status.outcomes.items() if n} == {"completed": 1, "failed": 2}
    assert (status.diagnoses, status.failed_ids) == ({"crash": 1}, ("r2",))
    assert (status.not_counted, status.runs) == ({"struck": 1}, 2)


def test_the_table_says_how_many_are_struck_out(row: Row) -> None:
    struck = row._replace(run_id="r2", outcome="failed", diagnosis="crash", struck="a power cut")
    console = Console(width=200)
    with console.capture() as shown:
        console.print(verdicts_table(judged([row, struck], {})))
    assert "1 of 1" in shown.get()
    assert "1 struck" in shown.get()
    assert "crash" not in shown.get()


def test_a_host_fault_has_failed_and_an_interrupted_run_is_not_counted(row: Row) -> None:
    fault = row._replace(run_id="r2", outcome="host-fault", diagnosis="unhealthy-gpu")
    interrupted = row._replace(run_id="r3", outcome="interrupted")
    (verdict,) = judged([row, fault, interrupted], {})
    assert (verdict.passes, verdict.runs, verdict.tier) == (1, 2, "flaky")
    assert verdict.not_counted == {"interrupted": 1}
    assert (verdict.diagnosis, verdict.gpu_faults) == ("unhealthy-gpu", ("r2",))
    (verdict,) = judged([interrupted], {})
    assert (verdict.diagnoses, verdict.diagnosis) == ({}, None)
    assert (verdict.runs, verdict.tier, verdict.low, verdict.high) == (0, "untested", 0, 1)


def test_the_dominant_diagnosis_comes_first(row: Row) -> None:
    told = ["crash", "hang-backward", "hang-backward"]
    rows = [row._replace(run_id=f"r{n}", outcome="failed", diagnosis=why) for n, why in enumerate(told)]
    (verdict,) = judged(rows, {})
    assert (verdict.diagnosis, list(verdict.diagnoses.values()), verdict.tier) == ("hang-backward", [2, 1], "failing")


def test_a_run_that_was_imported_does_not_say_what_a_cell_would_be_here(row: Row) -> None:
    elsewhere = row._replace(run_id="r2", environment_hash="other", imported=True, started=row.started + 1)
    here, there = sorted(judged([row, elsewhere], {}), key=lambda verdict: verdict.imported)
    assert (here.stale, here.imported, there.stale, there.imported) == (False, 0, True, 1)


MANY_HOURS = Totals(failures=0, lives=(Life(100.0),), boots=2)


@pytest.mark.parametrize(
    ("passes", "runs", "tier"),
    [
        (0, 0, "untested"),
        (0, 1, "failing"),
        (1, 1, "seen"),
        (4, 4, "seen"),
        (5, 5, "candidate"),
        (15, 15, "candidate"),
        (16, 16, "good"),
        (32, 32, "good"),
        (33, 33, "known-good"),
        (65, 66, "known-good"),
        (31, 32, "good"),
        (41, 43, "good"),
        (40, 42, "flaky"),
        (88, 90, "known-good"),
        (87, 89, "good"),
        (30, 31, "flaky"),
        (1, 2, "flaky"),
        (1, 30, "failing"),
        (50, 100, "flaky"),
    ],
)
def test_tiers_by_starts(passes: int, runs: int, tier: Tier) -> None:
    """Every failure here is one to start, and there are enough hours for any tier."""
    totals = replace(MANY_HOURS, started=passes, starts=runs)
    assert tier_of(passes, runs, totals, Verdicts()) == tier


@pytest.mark.parametrize(
    ("failures", "hours", "tier"),
    [
        (0, 0.0, "seen"),
        (0, 0.84, "seen"),
        (0, 0.86, "candidate"),
        (0, 3.39, "candidate"),
        (0, 3.41, "good"),
        (0, 10.19, "good"),
        (0, 10.21, "known-good"),
        (1, 20.6, "good"),
        (1, 20.8, "known-good"),
        (2, 9.2, "flaky"),
        (2, 9.4, "good"),
    ],
)
def test_tiers_by_hours(failures: int, hours: float, tier: Tier) -> None:
    """All of a hundred starts succeeded here; the bound expects 3.40, 6.90 and 9.27 failures for 0, 1 and 2."""
    totals = Totals(100, 100, failures, (Life(hours),), boots=2)
    assert tier_of(100 - failures, 100, totals, Verdicts()) == tier


def test_a_known_good_cell_ran_on_two_boots() -> None:
    totals = Totals(100, 100, 0, (Life(100.0),), boots=1)
    assert tier_of(100, 100, totals, Verdicts()) == "good"
    assert tier_of(100, 100, totals, Verdicts(known_good_boots=1)) == "known-good"
    assert tier_of(100, 100, replace(totals, boots=2), Verdicts()) == "known-good"


def test_a_cell_that_never_passed_is_failing_however_long_it_lasts() -> None:
    assert tier_of(0, 40, Totals(40, 40, 40, (Life(1000.0),), boots=2), Verdicts()) == "failing"


def test_runs_of_other_lengths_are_one_family_and_their_pass_rate_is_asked_for_apart(row: Row) -> None:
    long = row._replace(run_id="r2", workload_hash="longer")
    (pooled,) = judged([row, long], {})
    assert (pooled.runs, pooled.totals.hours) == (2, 2.0)
    assert [one.runs for one in judge([row, long], {}, Verdicts(), pooled=False)] == [1, 1]
