from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.evidence.index import Row
from harness.evidence.run_files import Intent, Record
from harness.evidence.verdicts.verdict import Verdict, judge, tier_of
from harness.host.facts import HostFacts
from harness.matrix.cells import Verdicts
from harness.registry.tags.promote import (
    VALID_SECONDS,
    TagClaim,
    choose_claims,
    claim_of,
    evidence_of,
    fallen,
    missing_passes,
    refusal,
)

IMAGE, OLD_IMAGE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
THRESHOLDS = Verdicts()
# A runs-only proof of a rate above .9 at 95 % confidence.
ENOUGH = 33


@pytest.fixture
def row(make_record: Callable[..., Record]) -> Row:
    return replace(Row.of(make_record(executor="docker")), image=IMAGE, qualifies_for_promotion=True)


def claims_of(rows: list[Row], current: dict[tuple[str, str], str] | None = None) -> list[TagClaim]:
    by_id = {row.run_id: row for row in rows}
    return [claim_of(verdict, by_id) for verdict in judge(rows, current or {}, THRESHOLDS)]


def repeated(row: Row, number: int, label: str = "r", **changes: Any) -> list[Row]:
    return [replace(row, run_id=f"{label}{n:03}", started=row.started + n, **changes) for n in range(number)]


def test_enough_passes_of_one_image_earn_a_tag(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH))
    assert refusal(claim, THRESHOLDS) is None
    assert (claim.image, claim.passes, claim.runs) == (IMAGE, ENOUGH, ENOUGH)
    assert choose_claims([claim], None, THRESHOLDS) == [claim]


def test_one_pass_less_does_not_and_the_line_says_so(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH - 1))
    told = str(refusal(claim, THRESHOLDS))
    assert told.endswith("it is good: 32 of 32 runs of its image passed, 32 of 32 in all; 1 more must pass")
    with pytest.raises(UserError, match="1 more must pass"):
        choose_claims([claim], None, THRESHOLDS)


def test_runs_of_another_image_do_not_count_for_this_one(row: Row) -> None:
    rows = repeated(row, ENOUGH, "a", image=OLD_IMAGE) + repeated(replace(row, started=row.started + 100), 10, "b")
    (claim,) = claims_of(rows)
    assert (claim.image, claim.runs) == (IMAGE, 10)
    assert "10 of 10 runs of its image passed, 43 of 43 in all; 23 more must pass" in str(refusal(claim, THRESHOLDS))


def test_failures_of_another_image_of_the_same_environment_speak_against_it(row: Row) -> None:
    failed = repeated(row, 20, "a", image=OLD_IMAGE, outcome="failed", diagnosis="crash")
    (claim,) = claims_of(failed + repeated(replace(row, started=row.started + 100), ENOUGH, "b"))
    assert claim.passes == claim.runs == ENOUGH
    assert "33 of 53 in all" in str(refusal(claim, THRESHOLDS))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"executor": "process", "image": None}, "used no image"),
        ({"qualifies_for_promotion": False}, "does not qualify for promotion"),
    ],
)
def test_what_never_earns_a_tag_is_refused(row: Row, changes: dict[str, Any], reason: str) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH, **changes))
    assert reason in str(refusal(claim, THRESHOLDS))


def test_stale_records_are_refused(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH), {(row.cell, row.executor): "another"})
    assert "stale" in str(refusal(claim, THRESHOLDS))


def test_drills_and_interrupted_runs_are_no_evidence(row: Row) -> None:
    others = repeated(row, 40, "a", injected_fault="crash@3") + repeated(row, 40, "b", outcome="interrupted")
    (claim,) = claims_of(others + repeated(row, 5, "c"))
    assert claim.runs == 5
    (nothing,) = claims_of(repeated(row, 40, "b", outcome="interrupted"))
    assert refusal(nothing, THRESHOLDS)


def test_the_cell_asked_for_is_judged_and_no_other(row: Row) -> None:
    good = repeated(row, ENOUGH)
    other = repeated(row, 3, "b", cell="cpu-no-sdma")
    claims = claims_of(good + other)
    with pytest.raises(UserError, match=r"cell cpu-no-sdma .* 3 of 3"):
        choose_claims(claims, "cpu-no-sdma", THRESHOLDS)
    with pytest.raises(UserError, match="no runs of cell x; `matrix run`"):
        choose_claims(claims, "x", THRESHOLDS)
    assert [claim.verdict.cell for claim in choose_claims(claims, None, THRESHOLDS)] == ["cpu-plain"]


def test_a_variant_of_a_cell_earns_none(row: Row) -> None:
    variants = claims_of(repeated(replace(row, cell="cpu-plain~fresh-allocator"), ENOUGH))
    with pytest.raises(UserError, match="there are no runs"):
        choose_claims(variants, None, THRESHOLDS)
    with pytest.raises(UserError, match="there are no runs"):
        choose_claims(variants, "cpu-plain~fresh-allocator", THRESHOLDS)


def test_without_any_the_nearest_is_told_of(row: Row) -> None:
    claims = claims_of(repeated(row, 3) + repeated(row, 20, "b", cell="cpu-no-sdma"))
    with pytest.raises(UserError, match=r"cell cpu-no-sdma .* 13 more must pass"):
        choose_claims(claims, None, THRESHOLDS)


def test_each_scope_gets_the_cell_with_most_certainty(row: Row) -> None:
    rows = (
        repeated(row, ENOUGH) + repeated(row, 40, "b", cell="cpu-no-sdma") + repeated(row, 35, "c", scope="cpu-ddp-2")
    )
    chosen = choose_claims(claims_of(rows), None, THRESHOLDS)
    assert [(c.verdict.scope, c.verdict.cell) for c in chosen] == [("cpu", "cpu-no-sdma"), ("cpu-ddp-2", "cpu-plain")]


@settings(deadline=None)
@given(passes=st.integers(0, 60), failures=st.integers(0, 6))
def test_so_many_passes_are_missing_and_not_one_less(passes: int, failures: int) -> None:
    runs = passes + failures
    missing = missing_passes(passes, runs, THRESHOLDS)
    assert missing is not None
    assert tier_of(passes + missing, runs + missing, THRESHOLDS) == "known-good"
    if missing:
        assert tier_of(passes + missing - 1, runs + missing - 1, THRESHOLDS) != "known-good"


def test_the_evidence_says_what_was_run_where(
    row: Row, make_intent: Callable[..., Intent], dual_host: HostFacts
) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH))
    intent = make_intent(device="cuda", gpus=(0, 1), host=dual_host, options={"strategy": "ddp", "devices": 2})
    evidence = evidence_of(claim, intent, THRESHOLDS, 10.0, repository=None, digest=None, previous=None)
    assert (evidence.gfx, evidence.gpu_count, evidence.kernel) == (("gfx1100",), 2, dual_host.kernel)
    assert (evidence.image, evidence.passes, evidence.runs, evidence.run_ids) == (IMAGE, 33, 33, claim.run_ids)
    assert evidence.low > THRESHOLDS.known_good
    assert evidence.expires_at - evidence.promoted_at == VALID_SECONDS
    late = claim.verdict.last_at + 1000
    again = evidence_of(claim, intent, THRESHOLDS, late, repository=None, digest=None, previous=None)
    assert again.expires_at == claim.verdict.last_at + VALID_SECONDS
    on_cpu = evidence_of(claim, make_intent(), THRESHOLDS, 10.0, repository=None, digest=None, previous=None)
    assert (on_cpu.gfx, on_cpu.gpu_count) == ((), 0)


def test_a_tag_whose_verdict_fell_is_told(row: Row, make_intent: Callable[..., Intent]) -> None:
    rows = repeated(row, ENOUGH)
    (claim,) = claims_of(rows)
    evidence = evidence_of(claim, make_intent(), THRESHOLDS, 10.0, repository=None, digest=None, previous=None)

    def now(failures: int, **changes: Any) -> list[Verdict]:
        failed = repeated(row, failures, "f", outcome="failed", diagnosis="crash", **changes)
        return judge(rows + failed, {}, THRESHOLDS)

    assert fallen(evidence, now(0)) is None
    assert fallen(evidence, now(1)) is None
    assert fallen(evidence, now(9)) == "its cell is flaky now: 33 of 42 runs passed, crash"
    assert fallen(evidence, now(9, workload_hash="another")) is None
    assert fallen(evidence, now(9, host_kind="another")) is None
