"""Tests of campaigns in stages on a host with two GPUs: what is run next, and how they end."""

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.base.silent_hosts import note_silent, said_of_silent
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.campaign import begin_or_continue
from harness.campaign.planning import stage_evidence
from harness.campaign.planning.stage_evidence import StageEvidence
from harness.campaign.reboot import INTERRUPTED_CAMPAIGN
from harness.campaign.run_campaign import run_campaign
from harness.campaign.runner import Runner
from harness.campaign.sequence import run_stages as module
from harness.campaign.sequence.run_stages import placement_of
from harness.evidence.files.app_files import InputFile
from harness.evidence.records import check_run_id, new_run_id
from harness.evidence.verdicts.counting import counts_of
from harness.matrix.cells import Matrix
from harness.matrix.programs import Program
from harness.matrix.stages import CampaignStage
from harness.matrix.workloads import Workload
from harness.search.stages.conclusion import conclude_stages
from harness.search.stages.runs import SeenRuns, Setting, StageRun
from harness.search.stages.search import MOST_FAILURES, StageEnd
from tests.harness.campaign.sequence.staged import (
    ALL,
    FIRST,
    SECOND,
    Staged,
    carried_out,
    make_imported,
    prepared,
)
from tests.harness.pretending import FakeRun, RecordingDisplay


def test_what_trains_goes_through_the_stages_until_it_is_good_and_then_meets_the_criteria(
    bench: Staged, matrix: Matrix
) -> None:
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    cell = f"{FIRST}-plain"
    assert bench.workloads[:5] == [
        (cell, "quick", "single", (0,)),
        (cell, "standard", "single", (0,)),
        (cell, "standard", "single", (1,)),
        (cell, "standard", "ddp", (0, 1)),
        (cell, "endurance", "ddp", (0, 1)),
    ]
    assert [name for _, name, _, _ in bench.workloads[-4:]] == ["immediate", "full", "production", "standard"]
    assert bench.workloads[-1] == (cell, "standard", "dp", (0, 1))
    assert {one for one, *_ in bench.workloads} == {cell}
    assert found.reached
    assert found.sentence.startswith(f"{cell} on 2 GPUs (ddp) is good: ")


def test_what_is_good_runs_a_program_of_the_users_own(bench: Staged, matrix: Matrix) -> None:
    program = Program(command=("python", "train.py"), source="code")
    mine = Workload.model_validate({"name": "mine", "description": "m", "time_limit": 60, "program": program})
    stage = CampaignStage(name="mine", description="my training", workload="mine", enters="winner")
    own = {"workloads": {**matrix.workloads, "mine": mine}, "stages": {**matrix.stages, "mine": stage}}
    run_as = []

    def passes(run: FakeRun) -> bool:
        if run.workload.program:
            run_as.append((run.planned.cell.id, run.workload))
        return run.workload.vpoc_path == "preallocated" or run.workload.name in ("quick", "mine")

    bench.passes, bench.fails_in = passes, "features"
    found, _, _ = carried_out(bench, prepared(bench, matrix.model_copy(update=own)))
    assert found.reached
    # `vpoc_path` is an option of this project's app, so the user's program runs without it.
    assert run_as == [(f"{FIRST}-plain", mine.model_copy(update={"strategy": "ddp"}))]


@pytest.mark.slow
def test_where_collectives_fail_the_ways_around_them_are_tried_in_order(bench: Staged, matrix: Matrix) -> None:
    bench.passes = lambda run: len(run.planned.gpus) == 1 or run.workload.strategy == "averaging"
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    on_two = [
        (cell, strategy) for cell, name, strategy, gpus in bench.workloads if len(gpus) > 1 and name == "standard"
    ]
    ways = [one.preset for one in matrix.stages["two-gpus"].otherwise if one.preset]
    expected = [
        *((f"{FIRST}-{preset}", "ddp") for preset in ("plain", *ways)),
        (f"{FIRST}-plain", "averaging"),
        (f"{SECOND}-plain", "ddp"),
        (f"{SECOND}-{ways[0]}", "ddp"),
    ]
    assert on_two[: len(expected)] == expected
    assert found.reached
    assert f"{FIRST}-plain on 2 GPUs (averaging) is good" in found.sentence


def test_ctrl_c_and_the_same_again_continue_and_no_run_is_made_twice(bench: Staged, matrix: Matrix) -> None:
    campaign = prepared(bench, matrix)
    bench.stop_after = 6
    with pytest.raises(KeyboardInterrupt):
        carried_out(bench, campaign)
    bench.stop_after = None
    found, _, continued = carried_out(bench, campaign)
    assert continued
    assert found.reached
    assert bench.workloads.count((f"{FIRST}-plain", "quick", "single", (0,))) == 1
    assert bench.workloads.count((f"{FIRST}-plain", "full", "ddp", (0, 1))) == 1
    again, _, continued = carried_out(bench, campaign)
    assert not continued
    assert again.sentence == found.sentence


def on_synthetic_bars_first(bench: Staged, matrix: Matrix) -> None:
    """Leave an evening on synthetic bars that showed the first cell to be good."""
    data, bench.data = bench.data, None
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert found.reached
    bench.data = data
    bench.workloads.clear()


def test_what_other_data_show_to_be_good_is_run_on_the_data_that_were_named(bench: Staged, matrix: Matrix) -> None:
    on_synthetic_bars_first(bench, matrix)
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert found.reached
    assert bench.workloads == [
        (f"{FIRST}-plain", name, strategy, (0, 1))
        for name, strategy in [
            ("standard", "ddp"),
            ("immediate", "ddp"),
            ("full", "ddp"),
            ("production", "ddp"),
            ("standard", "dp"),
        ]
    ]
    before = list(bench.workloads)
    assert carried_out(bench, prepared(bench, matrix))[0].reached
    assert bench.workloads == before


def test_what_fails_on_the_data_that_were_named_is_not_good(bench: Staged, matrix: Matrix) -> None:
    on_synthetic_bars_first(bench, matrix)
    bench.passes = lambda run: not run.planned.cell.id.startswith(FIRST)
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert bench.workloads[0] == (f"{FIRST}-plain", "standard", "ddp", (0, 1))
    assert bench.workloads.count(bench.workloads[0]) <= MOST_FAILURES
    assert found.named
    assert found.named.cell == f"{SECOND}-plain"


def test_the_data_that_were_named_are_not_asked_for_without_end_if_they_change(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_synthetic_bars_first(bench, matrix)
    monkeypatch.setattr(stage_evidence, "read_data", lambda file: InputFile(path=str(file), sha256="b" * 64))
    assert carried_out(bench, prepared(bench, matrix))[0].reached
    assert len(bench.workloads) == 5


def test_without_time_for_a_run_on_the_data_that_were_named_nothing_is_good(bench: Staged, matrix: Matrix) -> None:
    on_synthetic_bars_first(bench, matrix)
    campaign = prepared(bench, matrix)
    assert campaign.stages
    end = campaign.stages.next(StageEvidence(bench, matrix).read(), 0.001)
    assert isinstance(end, StageEnd)
    assert (end.why, end.best and end.best.is_good) == ("out-of-time", False)
    assert "which lacks 1 more start without a failure" in conclude_stages(end, 2).sentence


def test_a_stack_that_cannot_be_made_is_left_out_and_the_campaign_can_be_continued(
    bench: Staged, matrix: Matrix
) -> None:
    bench.missing = (FIRST, SECOND)
    found, display, _ = carried_out(bench, prepared(bench, matrix))
    assert bench.workloads == []
    assert not found.reached
    assert found.continues
    assert f"Left out, because they could not be made or had no room: {SECOND}, {FIRST}." in found.sentence
    assert any("its wheels are gone" in line for line in display.problems)
    bench.missing = (FIRST,)
    found, _, continued = carried_out(bench, prepared(bench, matrix))
    assert continued
    assert found.sentence.startswith(f"{SECOND}-plain on 2 GPUs")


@pytest.mark.slow
def test_a_stack_whose_source_did_not_answer_is_tried_again_when_nothing_else_is_left(
    bench: Staged, matrix: Matrix
) -> None:
    bench.unanswered_tries, bench.passes = {FIRST: 1}, lambda run: run.planned.cell.stack.name == FIRST
    note_silent("registry", "it does not answer")
    found, display, _ = carried_out(bench, prepared(bench, matrix))
    assert display.problems[0] == f"stack {FIRST} is left out for now: the registry does not answer"
    assert bench.workloads[0][0] == f"{SECOND}-plain"
    assert said_of_silent("registry") is None
    assert found.sentence.startswith(f"{FIRST}-plain on 2 GPUs (ddp) is good: ")


def test_a_source_that_never_answers_is_asked_once_more_at_the_end(bench: Staged, matrix: Matrix) -> None:
    bench.unanswered_tries, bench.passes = {FIRST: 99}, lambda _: False
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert bench.unanswered_tries == {FIRST: 97}
    assert found.continues
    assert f"Left out, because their source of packages did not answer: {FIRST}." in found.sentence


def test_without_a_network_each_source_is_asked_once(bench: Staged, matrix: Matrix) -> None:
    campaign = prepared(bench, matrix)
    bench.unanswered_tries = dict.fromkeys((run.cell.stack.name for run in campaign.plan.runs), 9)
    found, display, _ = carried_out(bench, campaign)
    assert set(bench.unanswered_tries.values()) == {8}
    assert len(display.problems) == len(bench.unanswered_tries)
    assert found.continues


def test_a_source_that_did_not_answer_is_asked_again_after_a_while(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.0)
    bench.unanswered_tries = {FIRST: 1}
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert {cell for cell, *_ in bench.workloads} == {f"{FIRST}-plain"}
    assert found.reached


def test_a_stack_without_room_is_left_out(bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.results.folder.mkdir(parents=True, exist_ok=True)
    free = {"free": 10 * 10**9}
    monkeypatch.setattr("harness.campaign.sequence.run_stages.shutil.disk_usage", lambda _: type("Usage", (), free))
    found, display, _ = carried_out(bench, prepared(bench, matrix, free["free"]))
    assert any(FIRST in line and "needs 20 GB, 10 GB are free" in line for line in display.problems)
    assert found.sentence.startswith(f"{SECOND}-plain on 2 GPUs")


def test_a_failed_vpoc_phase_is_tried_in_other_ways(bench: Staged, matrix: Matrix) -> None:
    bench.passes = lambda run: run.workload.vpoc_path == "preallocated"
    bench.fails_in = "features"
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    runs = [folder.name for folder in bench.results.runs.iterdir()]
    # The way is also tried on the other GPU, because the first GPU itself may be what fails.
    assert any("smoke-chunked-gpu1" in name for name in runs)
    assert not any("one-gpu-chunked-gpu0" in name for name in runs)
    assert any("two-gpus-ddp-preallocated-gpu0-1" in name for name in runs)
    assert "with vpoc_path preallocated is good" in found.sentence


def test_what_got_past_the_features_is_kept_when_training_is_changed(bench: Staged, matrix: Matrix) -> None:
    def fails_in(run: FakeRun) -> str:
        return "features" if run.workload.vpoc_path == "naive" else "first-step"

    bench.passes = lambda run: (
        fails_in(run) != "features"
        and (run.workload.smoke_test or run.workload.sdpa == "math" or "attention" not in run.workload.model)
    )
    bench.fails_in = fails_in
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert f"{FIRST}-plain on 2 GPUs (ddp) with sdpa math, vpoc_path chunked is good" in found.sentence


def test_after_a_failed_training_attention_is_changed_and_then_the_model(bench: Staged, matrix: Matrix) -> None:
    tried = []

    def passes(run: FakeRun) -> bool:
        if run.workload.name == "standard" and run.planned.gpus == (0,):
            tried.append((run.workload.sdpa, run.workload.model))
        return run.workload.smoke_test or "attention" not in run.workload.model

    bench.passes = passes
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    models = ("mlp", "attention")
    assert tried == [("auto", models), ("math", models), ("auto", ("mlp", "attention-small"))]
    assert "with model mlp, attention-small is good" in found.sentence


def test_where_the_host_went_down_progress_tells_the_phase(bench: Staged, matrix: Matrix) -> None:
    memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    line = {"schema": 2, "wall": 1.0, "monotonic": 1.0, "rank": 0, "pid": 9, "phase": "features", "done": 0, "total": 9}
    line |= {"max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory}
    run_cell = bench.run_cell

    def run_cell_and_leave_progress(run: Any, *others: Any) -> Any:
        record = run_cell(run, *others)
        work = bench.results.runs / run.run_id / "work"
        work.mkdir(exist_ok=True)
        (work / "progress-0.jsonl").write_text(json.dumps(line) + "\n")
        return record

    bench.run_cell = run_cell_and_leave_progress  # type: ignore[method-assign]
    bench.passes, bench.fails_in = lambda run: run.workload.vpoc_path == "chunked", None
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert "with vpoc_path chunked is good" in found.sentence


@pytest.mark.parametrize("fails_in", ["import", "first-step"])
def test_what_did_not_fail_in_the_features_is_not_tried_with_others(
    fails_in: str, bench: Staged, matrix: Matrix
) -> None:
    bench.passes, bench.fails_in = lambda _: False, fails_in
    carried_out(bench, prepared(bench, matrix))
    assert not any("chunked" in run.name or "math" in run.name for run in bench.results.runs.iterdir())


@pytest.mark.slow
def test_a_vpoc_phase_that_fails_on_one_gpu_only_is_tried_in_other_ways(bench: Staged, matrix: Matrix) -> None:
    bench.passes = lambda run: 1 not in run.planned.gpus or run.workload.vpoc_path != "naive"
    bench.fails_in = "features"
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert f"{FIRST}-plain on 2 GPUs (ddp) with vpoc_path chunked is good" in found.sentence


def presets_in_turn(bench: Staged) -> list[tuple[str, str]]:
    """Return the stack and the preset of each cell that ran, in the order of their first runs."""
    cells = dict.fromkeys(cell for cell, *_ in bench.workloads)
    return [(stack, cell.removeprefix(f"{stack}-")) for cell in cells for stack in (FIRST, SECOND) if stack in cell]


@pytest.mark.slow
def test_on_the_first_stack_that_trains_the_other_presets_are_tried_before_another_is_downloaded(
    bench: Staged, matrix: Matrix
) -> None:
    bench.passes = lambda run: run.workload.smoke_test or "notes-aggressive" in run.planned.cell.id
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert f"{FIRST}-notes-aggressive on 2 GPUs" in found.sentence
    presets = ("plain", "no-hipblaslt", "no-sdma", "notes-stable", "notes-aggressive")
    assert [preset for preset in presets_in_turn(bench) if preset[1] in presets] == [(FIRST, one) for one in presets]
    # Changes of the workload for attention are tried with `plain`, not again with each of the other presets.
    changed = [
        run.name for run in bench.results.runs.iterdir() if "-math-" in run.name or "attention-small" in run.name
    ]
    assert changed
    assert all(f"{FIRST}-plain-" in name for name in changed)


@pytest.mark.slow
def test_the_other_presets_of_later_stacks_wait_until_every_stack_had_its_turn(bench: Staged, matrix: Matrix) -> None:
    trains = f"{SECOND}-notes-aggressive"
    bench.passes = lambda run: run.workload.smoke_test or run.planned.cell.id == trains
    found, _, _ = carried_out(bench, prepared(bench, matrix, stacks=ALL))
    assert f"{trains} on 2 GPUs" in found.sentence
    in_turn = list(dict.fromkeys(cell for cell, *_ in bench.workloads))
    assert max(in_turn.index(f"{stack}-plain") for stack in ALL) < in_turn.index(f"{SECOND}-no-sdma")


def test_a_preset_that_was_run_by_hand_does_not_take_the_turn_of_the_control(bench: Staged, matrix: Matrix) -> None:
    by_hand = PendingRun(PlannedRun(matrix.cells[f"{SECOND}-no-sdma"], 1, (0,)), "r0")
    bench.passes = lambda run: run.planned.cell.id == f"{SECOND}-plain"
    Runner(bench, matrix.workloads["quick"], RecordingDisplay(), "by-hand").run([by_hand])
    found, _, _ = carried_out(bench, prepared(bench, matrix, stacks=ALL))
    assert f"{SECOND}-plain on 2 GPUs" in found.sentence
    assert {stack for stack in ALL for cell, *_ in bench.workloads if cell.startswith(stack)} == {FIRST, SECOND}


def test_once_two_stacks_failed_when_run_for_hours_every_other_has_its_turn_first(
    bench: Staged, matrix: Matrix
) -> None:
    bench.passes, bench.fails_after_hours = lambda run: run.workload.name != "endurance", 1.0
    bench.stop_after = 30
    with pytest.raises(KeyboardInterrupt):
        carried_out(bench, prepared(bench, matrix, stacks=ALL))
    names = [(cell, name) for cell, name, *_ in bench.workloads]
    every = [f"{stack}-plain" for stack in ALL]
    first, second, third = (names.index((cell, "endurance")) for cell in every[:3])
    assert first < names.index((every[1], "quick"))
    assert second < names.index((every[2], "quick"))
    assert third > max(names.index((cell, "standard")) for cell in every)


def test_presets_that_a_diagnosis_recommends_are_tried_first(bench: Staged, matrix: Matrix) -> None:
    bench.passes = lambda run: run.workload.smoke_test or "notes-aggressive" in run.planned.cell.id
    bench.remedies = ("notes-aggressive", "one-queue")
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert f"{FIRST}-notes-aggressive on 2 GPUs" in found.sentence
    assert "notes-stable" not in dict(presets_in_turn(bench)).values()


@pytest.mark.slow
def test_what_works_only_in_another_way_on_a_later_stack_is_run_for_hours(bench: Staged, matrix: Matrix) -> None:
    def passes(run: FakeRun) -> bool:
        averaging = run.workload.strategy == "averaging" and SECOND in run.planned.cell.id
        return len(run.planned.gpus) == 1 or averaging

    bench.passes = passes
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert f"{SECOND}-plain on 2 GPUs (averaging) is good" in found.sentence


@pytest.mark.slow
def test_dp_is_tried_where_nothing_comes_through_on_two_gpus(bench: Staged, matrix: Matrix) -> None:
    bench.passes = lambda run: len(run.planned.gpus) == 1 or run.workload.strategy == "dp"
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert {cell for cell, _, strategy, _ in bench.workloads if strategy == "dp"} == {
        f"{FIRST}-plain",
        f"{SECOND}-plain",
    }
    # A pass with dp counts for dp alone.
    assert found.sentence.startswith(
        "No cell is shown to be good on 2 GPUs, and nothing of the selection is left to try"
    )


@pytest.mark.slow
def test_what_the_app_refuses_is_asked_for_once_and_the_next_is_tried(bench: Staged, matrix: Matrix) -> None:
    first = f"{FIRST}-plain"
    bench.refuses = lambda run: run.planned.cell.id == first or run.workload.name == "endurance"
    ended, _, _ = carried_out(bench, prepared(bench, matrix))
    ran = [(cell, workload) for cell, workload, *_ in bench.workloads]
    # Once on each GPU.
    assert ran.count((first, "quick")) == 2
    assert max(ran.count((cell, "endurance")) for cell, _ in ran) == 1
    assert not any(count.counts for run_id, count in counts_of(bench.results).items() if f"-{first}-" in run_id)
    assert ended.reached


def test_ids_differ_where_what_is_run_differs(matrix: Matrix) -> None:
    workload, cell = matrix.workloads["standard"], matrix.cells[f"{FIRST}-plain"]
    settings = [Setting(cell), Setting(cell, options=(("model", ("mlp", "attention-small")),)), Setting(cell, "ddp")]
    gpus = [(0,), (0,), (0, 1)]
    names = [
        placement_of(StageRun("one-gpu", setting, workload, on, 1, ""))
        for setting, on in zip(settings, gpus, strict=True)
    ]
    assert names == ["-one-gpu-gpu0", "-one-gpu-mlp-attention-small-gpu0", "-one-gpu-ddp-gpu0-1"]


def test_no_id_is_too_long_whatever_the_stages_changed(matrix: Matrix) -> None:
    """A run with such an id would end the campaign, and so would the same command."""
    models = (("model", ("mlp", "attention-small")),)
    for cell in matrix.cells.values():
        settings = [
            Setting(cell, strategy, (*models, ("vpoc_path", path)))
            for strategy in ("ddp", "model-parallel")
            for path in ("chunked", "preallocated", "cpu")
        ]
        runs = [StageRun("production", one, matrix.workloads["standard"], (0, 1), 1, "") for one in settings]
        ids = {f"{new_run_id('c')}-{cell.id}{placement_of(run)}-1234-again12" for run in runs}
        assert len({one.partition(cell.id)[2] for one in ids}) == len(runs)
        for run_id in ids:
            check_run_id(run_id)


def test_the_campaign_names_its_budget(bench: Staged, matrix: Matrix) -> None:
    carried_out(bench, prepared(bench, matrix))
    (file,) = (bench.results.folder / "campaigns").glob("*.json")
    assert json.loads(file.read_bytes())["goal"]["budget"] == 36000.0


def test_what_passed_its_stages_and_then_begins_no_more_is_tried_a_few_times_before_another_stack(
    bench: Staged, matrix: Matrix
) -> None:
    explored = 4
    bench.begins = lambda run: len(bench.workloads) <= explored or run.planned.cell.stack.name == SECOND
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert [(cell, workload) for cell, workload, *_ in bench.workloads[explored : explored + 7]] == [
        *[(f"{FIRST}-plain", "endurance")] * 3,
        *[(f"{FIRST}-plain", "standard")] * 3,
        (f"{SECOND}-plain", "quick"),
    ]
    assert found.sentence.startswith(f"{SECOND}-plain on 2 GPUs (ddp) is good: ")


def test_a_campaign_with_runs_that_are_not_begun_continues_by_the_same_command(bench: Staged, matrix: Matrix) -> None:
    bench.begins = lambda _: len(bench.workloads) <= 4
    found, _, _ = carried_out(bench, prepared(bench, matrix, stacks=[FIRST]))
    assert (found.why, found.continues) == ("exhausted", True)
    assert f"Runs of {FIRST}-plain were asked for several times and not begun: `matrix status" in found.sentence
    bench.begins = lambda _: True
    campaign = prepared(bench, matrix, stacks=[FIRST])
    assert campaign.stages is not None
    later = replace(campaign.stages.host, attempts_since=1e9 + 60.0 * len(bench.workloads) + 1)
    again, _, continued = carried_out(bench, replace(campaign, stages=replace(campaign.stages, host=later)))
    assert continued
    assert again.reached


def test_one_refusal_of_a_command_that_the_app_accepts_does_not_end_the_long_runs(
    bench: Staged, matrix: Matrix
) -> None:
    def refuses(run: FakeRun) -> bool:
        long = [workload for _, workload, *_ in bench.workloads].count("endurance")
        return run.workload.name == "endurance" and long == 2

    bench.refuses = refuses
    found, _, _ = carried_out(bench, prepared(bench, matrix, stacks=[FIRST]))
    assert found.reached
    assert [workload for _, workload, *_ in bench.workloads].count("endurance") > 2


@pytest.mark.parametrize("takes", [60.0, 150.0])
def test_the_time_to_make_a_stack_is_asked_for_once(
    takes: float, bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, now = prepared(bench, matrix, stacks=[FIRST]), [1000.0]
    assert campaign.stages is not None
    assert campaign.plan.goal is not None
    stages = replace(campaign.stages, host=replace(campaign.stages.host, setup_seconds={FIRST: 720.0}))
    least = stages.least_budget(SeenRuns.of(()), 1.0)
    assert least
    plan = replace(campaign.plan, goal=replace(campaign.plan.goal, budget=least))
    monkeypatch.setattr("harness.campaign.sequence.run_stages.time.monotonic", lambda: now[0])
    makes = bench.make_ready

    def make_ready(*args: Any) -> None:
        now[0] += takes
        makes(*args)

    monkeypatch.setattr(bench, "make_ready", make_ready)
    carried_out(bench, replace(campaign, stages=stages, plan=plan))
    assert bench.workloads


def test_a_campaign_that_concludes_from_earlier_runs_cautions_of_uncommitted_changes_too(
    bench: Staged, matrix: Matrix
) -> None:
    made = bench.make_record
    dirty = {"revision": f"{'c' * 40}-dirty"}
    bench.make_record = lambda *args, **about: made(*args, **{**about, **dirty})
    first, second = (run_campaign(prepared(bench, matrix), RecordingDisplay()) for _ in range(2))
    assert (first.done > 0, second.done) == (True, 0)
    for ended in (first, second):
        assert ended.conclusion
        assert "was made from changes that no commit has" in ended.conclusion.sentence


def test_a_campaign_that_cannot_continue_after_a_reboot_says_that_its_budget_begins_again(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INTERRUPTED_CAMPAIGN, "c1")
    with begin_or_continue(prepared(bench, matrix).plan, bench):
        pass
    display = RecordingDisplay()
    run_campaign(prepared(bench, matrix), display)
    assert not [one for one in display.problems if "cannot continue" in one]
    bench.host = bench.host.model_copy(update={"gpus": bench.host.gpus[:1]})
    bench = replace(bench, gpus=(0,))
    found = prepared(bench, matrix)
    run_campaign(found, display)
    (said,) = [one for one in display.problems if "campaign c1, which the reboot interrupted, cannot continue" in one]
    assert said.endswith("A new campaign begins, with the whole budget")


def test_a_winners_run_is_begun_only_where_time_is_left_for_it(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, runs, begun = [1000.0], bench.run_cell, dict[str, float]()

    def run_cell(run: Any, *rest: Any) -> Any:
        begun.setdefault(run.workload.name, now[0])
        now[0] += 4500.0 if run.workload.name == "endurance" else 60.0
        return runs(run, *rest)

    monkeypatch.setattr("harness.campaign.sequence.run_stages.time.monotonic", lambda: now[0])
    monkeypatch.setattr(bench, "run_cell", run_cell)
    campaign = prepared(bench, matrix, stacks=[FIRST])
    carried_out(bench, campaign)
    assert {"immediate", "full", "production"} <= begun.keys()
    make_imported(bench)
    assert campaign.plan.goal is not None
    # That is room for the first of the winner's runs, of 5 minutes, and not for the others, of 30.
    budget = begun["immediate"] - 1000.0 + 1200.0
    plan = replace(campaign.plan, goal=replace(campaign.plan.goal, budget=budget))
    found, _, _ = carried_out(bench, replace(campaign, plan=plan))
    assert found.reached
    ran = {workload for _, workload, *_ in bench.workloads}
    assert ran & {"immediate", "full", "production"} == {"immediate"}


def test_a_winners_run_that_is_not_begun_is_passed_over(bench: Staged, matrix: Matrix) -> None:
    bench.begins = lambda run: run.workload.name != "full"
    found, _, _ = carried_out(bench, prepared(bench, matrix))
    assert [workload for _, workload, *_ in bench.workloads[-5:]] == [*["full"] * 3, "production", "standard"]
    assert found.reached


def test_after_a_budget_that_was_spent_the_same_command_has_another(bench: Staged, matrix: Matrix) -> None:
    bench.missing = (FIRST,)
    campaign = prepared(bench, matrix)
    assert campaign.plan.goal is not None
    # The budget suffices for the smoke stage of the stack that can be made, and no more.
    short = replace(campaign, plan=replace(campaign.plan, goal=replace(campaign.plan.goal, budget=150.0)))
    found, _, _ = carried_out(bench, short)
    assert found.why == "out-of-time"
    assert f"Left out, because they could not be made or had no room: {FIRST}." in found.sentence
    _, _, continued = carried_out(bench, short)
    assert not continued


def test_a_campaign_that_is_continued_has_what_is_left_of_its_budget(
    bench: Staged, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, left = prepared(bench, matrix), list[float | None]()
    bench.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        carried_out(bench, campaign)
    bench.stop_after = None
    decides = module._Stages.next

    def decide(stages: Any, seconds: float | None) -> Any:
        left.append(seconds)
        return decides(stages, seconds)

    monkeypatch.setattr(module._Stages, "next", decide)
    monkeypatch.setattr(module, "seconds_spent", lambda rows: 1000.0 * len(list(rows)))
    carried_out(bench, campaign)
    assert left[0] == pytest.approx(36000.0 - 3000.0, abs=60)


def test_what_failed_once_for_hours_only_lacks_the_time(bench: Staged, matrix: Matrix) -> None:
    ran: list[str] = []

    def passes(run: FakeRun) -> bool:
        ran.append(run.workload.name)
        return run.workload.name != "endurance"

    bench.passes, bench.fails_in, bench.fails_after_hours = passes, "step", 0.5
    campaign = prepared(bench, matrix)
    assert campaign.stages is not None
    search = replace(campaign.stages, cells={FIRST: campaign.stages.cells[FIRST]})
    runner = Runner(bench, campaign.plan.workload, RecordingDisplay(), "c")
    with begin_or_continue(campaign.plan, bench) as (under_way, _):
        stages = module._Stages(search, campaign, under_way, runner)
        while isinstance(decided := stages.next(0.0 if "endurance" in ran else 36000.0), StageRun):
            stages.run(decided, None)
    assert ran.count("endurance") == 1
    assert decided.why == "out-of-time"
