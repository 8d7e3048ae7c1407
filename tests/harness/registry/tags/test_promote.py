from collections.abc import Callable
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.host_state import HostState
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.host.facts import HostFacts
from harness.matrix.cells import Verdicts
from harness.registry.tags.promote import (
    VALID_SECONDS,
    TagClaim,
    choose_claims,
    evidence_of,
    is_about,
    missing_of,
    refusal,
    why_fallen,
)
from harness.registry.tags.promote import (
    claims_of as make_claims,
)

IMAGE, OLD_IMAGE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
THRESHOLDS = Verdicts()
# Starts without a failure that show a rate above .9 at 95 % confidence and, at half an hour each, an MTBF above 3 h.
ENOUGH = 33


@pytest.fixture
def row(make_record: Callable[..., Record]) -> Row:
    return Row.of(make_record(executor="docker"))._replace(image=IMAGE, qualifies_for_promotion=True)


def claims_of(rows: list[Row], current: dict[tuple[str, str], str] | None = None) -> list[TagClaim]:
    by_id, counts = {row.run_id: row for row in rows}, count_runs(rows)
    return make_claims(judge(rows, current or {}, THRESHOLDS, counts), by_id, counts)


def repeated(row: Row, number: int, label: str = "r", **changes: Any) -> list[Row]:
    """Return the rows of `number` runs of half an hour each, on two boots."""
    changes = {"exposure_seconds": 1800.0, **changes}
    rows = (row._replace(run_id=f"{label}{n:03}", started=row.started + n, **changes) for n in range(number))
    return [row if "boot_id" in changes else row._replace(boot_id=f"boot {n % 2}") for n, row in enumerate(rows)]


def test_enough_passes_of_one_image_qualify(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH))
    assert refusal(claim, THRESHOLDS) is None
    assert (claim.image, claim.passes, claim.runs) == (IMAGE, ENOUGH, ENOUGH)
    assert choose_claims([claim], None, THRESHOLDS) == [claim]


def test_one_pass_less_does_not_and_the_line_says_so(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH - 1))
    told = str(refusal(claim, THRESHOLDS))
    shown = "32 of 32 starts, 16.0 h of training, no failure, 2 boots"
    assert told.endswith(f"it is good: {shown} with its image, {shown} in all; 1 more start without a failure would do")
    with pytest.raises(UserError, match="1 more start without"):
        choose_claims([claim], None, THRESHOLDS)


def test_runs_of_another_image_do_not_count_for_this_one(row: Row) -> None:
    rows = repeated(row, ENOUGH, "a", image=OLD_IMAGE) + repeated(row._replace(started=row.started + 100), 10, "b")
    (claim,) = claims_of(rows)
    assert (claim.image, claim.runs) == (IMAGE, 10)
    refused = str(refusal(claim, THRESHOLDS))
    assert (
        "10 of 10 starts, 5.0 h of training, no failure, 2 boots with its image, 43 of 43 starts, 21.5 h of training"
        in refused
    )
    assert "23 more starts and 5.3 more hours of training without a failure would do" in refused


def test_failures_of_another_image_of_the_same_environment_speak_against_it(row: Row) -> None:
    failed = repeated(row, 20, "a", image=OLD_IMAGE, outcome="failed", diagnosis="crash", first_step=0)
    (claim,) = claims_of(failed + repeated(row._replace(started=row.started + 100), ENOUGH, "b"))
    assert claim.passes == claim.runs == ENOUGH
    assert "33 of 53 starts" in str(refusal(claim, THRESHOLDS))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"executor": "process", "image": None}, "used no image; `matrix run cpu-plain --executor docker` uses one"),
        ({"executor": "process", "qualifies_for_promotion": False}, "cpu-plain --workload standard --executor docker"),
        ({"qualifies_for_promotion": False}, "does not qualify for promotion"),
        ({"qualifies_for_promotion": False, "verified": False}, "its runs were not verified"),
        ({"uncommitted": True, "qualifies_for_promotion": False}, "its image was made from changes that no commit has"),
    ],
)
def test_what_never_qualifies_is_refused(row: Row, changes: dict[str, Any], reason: str) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH, **changes))
    assert reason in str(refusal(claim, THRESHOLDS))


def test_stale_records_are_refused(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH), {(row.cell, row.executor): "another"})
    assert "stale" in str(refusal(claim, THRESHOLDS))


def test_injected_faults_and_interrupted_runs_are_no_evidence(row: Row) -> None:
    others = repeated(row, 40, "a", injected_fault="crash@3") + repeated(row, 40, "b", outcome="interrupted")
    (claim,) = claims_of(others + repeated(row, 5, "c"))
    assert claim.runs == 5
    (nothing,) = claims_of(repeated(row, 40, "b", outcome="interrupted"))
    assert refusal(nothing, THRESHOLDS)


def test_rehearsals_are_no_evidence(row: Row) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH + 10, "a", rehearsal=True) + repeated(row, 5, "c"))
    assert claim.runs == 5
    assert claims_of(repeated(row, ENOUGH + 10, "a", rehearsal=True)) == []


def test_the_cell_asked_for_is_judged_and_no_other(row: Row) -> None:
    good = repeated(row, ENOUGH + 10)
    other = repeated(row, 3, "b", cell="cpu-no-sdma")
    claims = claims_of(good + other)
    with pytest.raises(UserError, match=r"cell cpu-no-sdma .* 3 of 3 starts"):
        choose_claims(claims, "cpu-no-sdma", THRESHOLDS)
    with pytest.raises(UserError, match="no runs of cell x on this kind of host; `matrix run`"):
        choose_claims(claims, "x", THRESHOLDS)
    assert [claim.verdict.cell for claim in choose_claims(claims, None, THRESHOLDS)] == ["cpu-plain"]


def test_a_variant_of_a_cell_earns_none(row: Row) -> None:
    variants = claims_of(repeated(row._replace(cell="cpu-plain~fresh-allocator"), ENOUGH))
    with pytest.raises(UserError, match="there are no runs"):
        choose_claims(variants, None, THRESHOLDS)
    with pytest.raises(UserError, match="there are no runs"):
        choose_claims(variants, "cpu-plain~fresh-allocator", THRESHOLDS)


def test_without_any_the_nearest_is_reported(row: Row) -> None:
    own = repeated(row, 30, "c", workload="app-mine", own_program=True)
    claims = claims_of(repeated(row, 3) + repeated(row, 20, "b", cell="cpu-no-sdma") + own)
    with pytest.raises(UserError, match=r"cell cpu-no-sdma .* 20 more starts"):
        choose_claims(claims, None, THRESHOLDS)


def test_each_scope_gets_the_cell_with_most_certainty(row: Row) -> None:
    many = 90
    rows = (
        repeated(row, many)
        + repeated(row, many + 10, "b", cell="cpu-no-sdma")
        + repeated(row, many, "c", scope="cpu-ddp-2")
    )
    chosen = choose_claims(claims_of(rows), None, THRESHOLDS)
    assert [(c.verdict.scope, c.verdict.cell) for c in chosen] == [("cpu", "cpu-no-sdma"), ("cpu-ddp-2", "cpu-plain")]


def test_the_best_of_many_is_held_to_more(row: Row) -> None:
    """Among forty cells with a true rate of .9, one passes 33 of 33 by chance in most campaigns."""
    good = repeated(row, ENOUGH)
    (alone,) = claims_of(good)
    assert refusal(alone, THRESHOLDS) is None
    others = [one for n in range(39) for one in repeated(row, 1, f"o{n}", cell=f"cell{n}", outcome="failed")]
    best = next(claim for claim in claims_of(good + others) if claim.verdict.cell == "cpu-plain")
    assert best.among == 40
    assert best.confidence(THRESHOLDS) == pytest.approx(1 - 0.05 / 40)
    refused = str(refusal(best, THRESHOLDS))
    assert "(the best of 40 that were tried is held to more)" in refused
    missing = missing_of(best, THRESHOLDS)
    assert (missing.starts > 30, missing.hours > 5) == (True, True)
    enough = next(c for c in claims_of(repeated(row, ENOUGH + missing.starts) + others) if c.passes > 1)
    assert refusal(enough, THRESHOLDS) is None
    # Runs of other families, and cells without any run that counts, are not among those that were tried.
    elsewhere = [one._replace(family="another") for one in others]
    assert {claim.among for claim in claims_of(good + elsewhere)} == {1, 39}
    interrupted = [one._replace(outcome="interrupted") for one in others]
    assert {c.among for c in claims_of(good + interrupted) if c.verdict.cell == "cpu-plain"} == {1}


def test_two_boots_are_needed(row: Row) -> None:
    (claim,) = claims_of(repeated(row, 60, boot_id="boot"))
    assert "a run after a reboot without a failure would do" in str(refusal(claim, THRESHOLDS))


def test_hours_are_needed(row: Row) -> None:
    """Forty straight starts of five minutes show an MTBF above one hour at most."""
    (claim,) = claims_of(repeated(row, 40, exposure_seconds=300.0))
    assert claim.verdict.tier == "candidate"
    assert "6.9 more hours of training without a failure would do" in str(refusal(claim, THRESHOLDS))


def test_the_evidence_says_what_was_run_where(
    row: Row, make_intent: Callable[..., Intent], dual_host: HostFacts
) -> None:
    (claim,) = claims_of(repeated(row, ENOUGH))
    firmware = {"mes": "0x82"}
    gpus = tuple(gpu.model_copy(update={"firmware": firmware}) for gpu in dual_host.gpus)
    dual_host = dual_host.model_copy(update={"gpus": gpus})
    intent = make_intent(device="cuda", gpus=(0, 1), host=dual_host, options={"strategy": "ddp", "devices": 2})
    evidence = evidence_of(claim, intent, THRESHOLDS, 10.0, repository=None, digest=None)
    assert (evidence.gfx, evidence.gpu_count, evidence.kernel) == (("gfx1100",), 2, dual_host.kernel)
    assert evidence.firmware == {"gfx1100": (firmware, firmware)}
    assert (evidence.image, evidence.passes, evidence.runs, evidence.run_ids) == (IMAGE, 33, 33, claim.run_ids)
    assert evidence.low > THRESHOLDS.known_good
    assert (evidence.started, evidence.starts, evidence.failures, evidence.hours) == (33, 33, 0, 16.5)
    assert evidence.mtbf_low is not None
    assert evidence.mtbf_low > THRESHOLDS.mtbf_hours.known_good
    assert (evidence.boots, evidence.longest_hours, evidence.among) == (2, 0.5, 1)
    assert evidence.expires_at - evidence.promoted_at == VALID_SECONDS
    late = claim.verdict.last_at + 1000
    again = evidence_of(claim, intent, THRESHOLDS, late, repository=None, digest=None)
    assert again.expires_at == claim.verdict.last_at + VALID_SECONDS
    on_cpu = evidence_of(claim, make_intent(), THRESHOLDS, 10.0, repository=None, digest=None)
    assert (on_cpu.gfx, on_cpu.gpu_count, on_cpu.firmware) == ((), 0, {})


def test_a_tag_whose_verdict_fell_is_reported(row: Row, make_intent: Callable[..., Intent]) -> None:
    rows = repeated(row, ENOUGH)
    (claim,) = claims_of(rows)
    evidence = evidence_of(claim, make_intent(), THRESHOLDS, 10.0, repository=None, digest=None)

    def now(failures: int, **changes: Any) -> list[Verdict]:
        failed = repeated(row, failures, "f", outcome="failed", diagnosis="crash", first_step=0, **changes)
        return judge(rows + failed, {}, THRESHOLDS)

    assert why_fallen(evidence, now(0)) is None
    assert why_fallen(evidence, now(1)) == "its cell is good now: 33 of 34 runs passed, crash"
    assert why_fallen(evidence, now(9)) == "its cell is flaky now: 33 of 42 runs passed, crash"
    assert why_fallen(evidence, now(9, family="another")) is None
    assert why_fallen(evidence, now(9, host_kind="another", imported=True)) is None
    # The same host, after a change of its kernel, driver or firmware.
    assert why_fallen(evidence, now(9, host_kind="another")) == "its cell is failing now: 0 of 9 runs passed, crash"
    assert why_fallen(evidence, now(9, host_kind="another", finished=9.0)) is None
    assert why_fallen(evidence, judge(rows + repeated(row, 1, "p", host_kind="another"), {}, THRESHOLDS)) is None


def test_a_tag_is_about_runs_on_its_host_as_it_was(row: Row, make_intent: Callable[..., Intent]) -> None:
    old, new = (HostState("6.8", None, {}, {"amdgpu.mes": value}).as_json for value in "01")
    rows = repeated(row, ENOUGH, host_state=old)
    (claim,) = claims_of(rows)
    drafted = evidence_of(claim, make_intent(), THRESHOLDS, 10.0, repository=None, digest=None)
    evidence = drafted.model_copy(update={"settings": {"amdgpu.mes": "0"}})
    (before,) = judge(rows, {}, THRESHOLDS)
    assert is_about(evidence, before)
    one_since = rows + repeated(row._replace(started=row.started + 100), 1, "n", host_state=new)
    stale, since = sorted(judge(one_since, {}, THRESHOLDS), key=lambda one: -one.runs)
    assert (is_about(evidence, stale), is_about(evidence, since)) == (True, False)
    # A small number of runs since the change does not count against the tag, but failures do.
    assert why_fallen(evidence, [stale, since]) is None
    (refused, *_) = (c for c in make_claims([stale], {r.run_id: r for r in rows}, count_runs(rows)))
    assert "are stale: on this host amdgpu.mes was 0, is 1; run it again" in str(refusal(refused, THRESHOLDS))
