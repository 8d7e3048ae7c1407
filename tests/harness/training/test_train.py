"""Tests of a training from attempt to attempt; the attempts are synthetic, and nothing is really run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.campaign.runner import MOST_LOST_IN_A_ROW
from harness.environments.executors.container import Container
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_folder import RunFolder
from harness.host.facts import HostFacts
from harness.run.requested_run import Run
from harness.run.spec import RunSpec, resolve_run
from harness.training import fragmentation
from harness.training.state import StateFile, new_state
from tests.harness.training import scripted_attempts
from tests.harness.training.scripted_attempts import (
    DONE,
    GPU_CELL,
    MakeTraining,
    Script,
    ScriptedAttemptsBench,
    TrainingUnderTest,
    resumed_at,
    write_checkpoint,
)


def test_a_training_that_ends_well_leaves_its_model_and_nothing_to_resume(training: TrainingUnderTest) -> None:
    ended = training.train(DONE)
    output = training.job.output
    assert ended.model == output / "bars.pt"
    (run,) = training.bench.made
    assert (output / "bars.pt").read_text(encoding="utf-8") == f"of {run.run_id}"
    assert sorted(file.name for file in output.iterdir()) == [
        *("attempts.jsonl", "bars.pt", "bars_checkpoints", "bars_curves.csv", "bars_metadata.json")
    ]
    assert not training.file.file.exists()
    assert not list(training.bench.results.runs.glob("*/work/output/*_checkpoints"))
    assert (run.name, run.resume_from, run.cell) == ("bars", (), training.job.cell)
    command = resolve_run(run, RunFolder(output)).intent.commands["train"]
    assert "--resume" not in command


@pytest.mark.parametrize("done", [replace(DONE, not_verified="why"), replace(DONE, no_verifier="why")])
def test_a_model_that_was_not_verified_is_there_and_that_is_said(done: Script, training: TrainingUnderTest) -> None:
    """Its verification took too long, or there was nothing to verify it in, as for an image of another contract."""
    assert training.train(done).model is not None
    assert training.display.problems == ["the model was not verified independently: why"]


def test_it_resumes_from_the_last_checkpoint_until_it_is_trained(training: TrainingUnderTest) -> None:
    ended = training.train(Script(), Script(step=20), Script("hung", "hang-forward"), Script(step=40), DONE)
    assert ended.model
    assert [resumed_at(run) for run in training.bench.made] == [0, 0, 20, 20, 40]
    assert "--resume" in resolve_run(training.bench.made[2], RunFolder(training.job.output)).intent.commands["train"]
    told = [(line["begin"], line["outcome"], line["step"]) for line in training.lines]
    assert told == [
        ("first", "failed", 0),
        ("same-again", "failed", 20),
        ("same-again", "hung", 20),
        ("same-again", "failed", 40),
        ("same-again", "completed", 58),
    ]
    assert [line["why"].rpartition(", from ")[2] for line in training.lines[1:3]] == [
        "the beginning",
        "the last checkpoint",
    ]
    assert training.display.problems[0].endswith(", no step is kept; next: the same again, from the beginning")
    assert training.display.problems[2] == (
        "attempt 3 hung (hang-forward), 20 steps are kept; next: the same again, from the last checkpoint"
    )


def test_what_is_resumed_or_changed_is_another_identity_than_what_was_asked_for(training: TrainingUnderTest) -> None:
    training.train(Script(class_="oom-gpu"), Script(class_="oom-gpu"), Script(step=20), DONE)
    intents = [resolve_run(run, RunFolder(training.job.output)).intent for run in training.bench.made]
    assert [intent.cell for intent in intents] == ["cpu-plain", *["cpu-plain~fresh-allocator"] * 3]
    assert intents[1].variables["train"]["MALLOC_ARENA_MAX"] == "2"
    assert intents[0].environment_hash != intents[1].environment_hash == intents[3].environment_hash
    assert [intent.options.get("micro_batch_size") for intent in intents] == [None, None, 32, 32]
    assert len({intent.workload_hash for intent in intents[1:]}) == 3
    assert intents[0].workload_hash == intents[1].workload_hash


def test_exhausted_fallbacks_end_it_and_are_tried_again_when_asked(training: TrainingUnderTest) -> None:
    ended = training.train(*[Script(step=20)] * 8)
    assert ended.model is None
    assert ended.exhausted
    assert "without getting further than step 20" in ended.exhausted
    begins = [line["begin"] for line in ended.attempts]
    ended = training.train(Script(), DONE)
    assert [line["begin"] for line in ended.attempts] == [*begins, "by-hand", "same-again"]
    assert resumed_at(training.bench.made[-2]) == 20
    assert training.bench.made[-2].cell == training.job.cell


def test_ctrl_c_is_reported_and_the_same_call_resumes(training: TrainingUnderTest) -> None:
    with pytest.raises(KeyboardInterrupt):
        training.train(Script(), Script(step=30, interrupt=True))
    assert [(line["begin"], line["outcome"]) for line in training.lines] == [
        ("first", "failed"),
        ("same-again", "interrupted"),
    ]
    assert training.train(DONE).model
    assert training.lines[-1]["begin"] == "resumed"
    assert resumed_at(training.bench.made[-1]) == 30


def test_an_attempt_that_was_noted_and_never_begun_is_made(training: TrainingUnderTest) -> None:
    with pytest.raises(IndexError):
        training.train(Script(step=20))
    assert training.train(DONE).model
    assert [line["begin"] for line in training.lines] == ["first", "same-again"]
    assert [run.run_id[-2:] for run in training.bench.made] == ["-1", "-2", "-2"]


def test_a_kill_before_the_model_is_in_place_costs_nothing(
    training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "remove", lambda *_: pytest.fail("killed"))
        with pytest.raises(BaseException, match="killed"):
            training.train(DONE)
    ended = training.train()
    assert ended.model
    assert len(training.bench.made) == 1


def test_a_model_that_could_not_be_published_at_first_costs_no_other_training(
    training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> tuple[Path, ...]:
        raise UserError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("harness.training.train.publish", full)
        with pytest.raises(UserError, match="full"):
            training.train(DONE)
    first, training.state = training.state, new_state("another", training.state.cell, None)
    with pytest.raises(KeyboardInterrupt):
        training.train(Script(step=30, interrupt=True))
    other, training.state = training.file.read("another"), first
    assert training.train().model
    assert (training.file.read("another"), training.file.read(first.key)) == (other, None)


def test_a_file_of_the_run_is_named_where_the_user_has_it(
    training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contained(run: Run, folder: RunFolder, resolve: Callable[..., RunSpec] = resolve_run) -> RunSpec:
        spec = resolve(run, folder)
        container = Container("image", 1, 1, str(folder.new_work.path), data=("/home/me/es.csv",))
        return replace(spec, intent=spec.intent.model_copy(update={"container": container.plain}))

    said = "vpoc: /work/output/bars_checkpoints/step-1.pt: is not of /data/es.csv"
    monkeypatch.setattr(scripted_attempts, "WORDS", said)
    monkeypatch.setattr(scripted_attempts, "resolve_run", contained)
    with pytest.raises(
        UserError,
        match=f"^the app says: '{training.job.output}/bars_checkpoints/step-1.pt: is not of /home/me/es.csv'; ",
    ):
        training.train(Script(class_="user-code", exit="exit 2"))


@pytest.mark.parametrize("resume", [False, True])
def test_an_option_that_was_not_given_is_not_advised_against(
    resume: bool, training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "vpoc: step-1.pt: was trained with data a, this run has b; give the same, or train without --resume"
    monkeypatch.setattr(scripted_attempts, "WORDS", said)
    training.job = replace(training.job, resume=resume)
    with pytest.raises(UserError) as refused:
        training.train(Script(class_="user-code", exit="exit 2"))
    assert ("give the same, or train without --resume'" in str(refused.value)) == resume
    assert "this run has b; give the same" in str(refused.value)


@pytest.mark.parametrize(("steps", "left"), [((), False), ((20,), True), (None, True)])
def test_of_a_training_that_the_app_refused_its_words_are_reported_and_nothing_is_left_to_continue(
    training: TrainingUnderTest, steps: tuple[int, ...] | None, left: bool
) -> None:
    gives_up = f"; `rm {training.file.file}` gives up what was trained so far" * left
    with pytest.raises(UserError, match=f"^the app says: 'something is wrong with the data'{gives_up}$"):
        training.train(Script(class_="user-code", exit="exit 2", accounted=steps))
    assert (training.file.unfinished_other("another") is not None) == left
    assert (training.file.read("key") is not None) == left


def test_of_a_training_that_was_refused_before_it_began_nothing_is_left_to_continue(
    training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("63 sessions are needed")

    monkeypatch.setattr(ScriptedAttemptsBench, "data_of", refuse)
    with pytest.raises(UserError, match="63 sessions"):
        training.train()
    assert not training.file.file.exists()
    assert not training.job.output.exists()
    # A folder that was there before belongs to the user.
    training.job.output.mkdir()
    with pytest.raises(UserError, match="63 sessions"):
        training.train()
    assert list(training.job.output.iterdir()) == []


def test_an_engine_that_is_gone_is_not_the_trainings_fault(training: TrainingUnderTest) -> None:
    with pytest.raises(UserError, match="the same command continues"):
        training.train(Script("interrupted", None, step=20))
    assert training.train(DONE).model
    assert resumed_at(training.bench.made[-1]) == 20


def test_a_training_survives_restarts_of_the_engine_but_not_without_end(training: TrainingUnderTest) -> None:
    lost = Script("interrupted", None, step=20, interrupted_by="engine")
    assert training.train(lost, lost, DONE).model
    assert [resumed_at(run) for run in training.bench.made] == [0, 20, 20]


def test_a_training_whose_engine_is_lost_each_time_ends(training: TrainingUnderTest) -> None:
    lost = Script("interrupted", None, step=20, interrupted_by="engine")
    with pytest.raises(UserError, match="the same command continues"):
        training.train(*[lost] * 9)
    assert len(training.bench.made) == MOST_LOST_IN_A_ROW + 1


def test_what_failed_after_a_step_was_no_mistake_in_the_input(training: TrainingUnderTest) -> None:
    training.train(Script(class_="user-code", exit="exit 2", step=20, first_step=True), DONE)
    assert [resumed_at(run) for run in training.bench.made] == [0, 20]


def test_wrong_numbers_are_never_resumed_from(training: TrainingUnderTest) -> None:
    wrong = Script(class_="wrong-result", step=58, exit="exit 0", with_result=True)
    training.train(Script(step=20), wrong, Script(step=25), DONE)
    assert [resumed_at(run) for run in training.bench.made] == [0, 20, 20, 25]
    assert [line["step"] for line in training.lines] == [20, 0, 25, 58]


@pytest.mark.parametrize(
    "class_", ["wrong-result", "verification-failed", "work-folder", "model-damaged", "model-does-not-load"]
)
@pytest.mark.parametrize("with_result", [True, False])
def test_an_attempt_that_was_judged_wrong_hands_over_nothing(
    class_: str, with_result: bool, training: TrainingUnderTest
) -> None:
    training.train(Script(class_=class_, step=58, with_result=with_result), DONE)
    assert [resumed_at(run) for run in training.bench.made] == [0, 0]


def test_after_two_wrong_ones_in_a_row_it_begins_again(training: TrainingUnderTest) -> None:
    wrong = Script(class_="verification-failed", step=58)
    training.train(Script(step=20), wrong, wrong, DONE)
    assert [resumed_at(run) for run in training.bench.made] == [0, 20, 20, 0]


def test_after_one_wrong_attempt_a_resumed_training_begins_where_it_was_resumed(training: TrainingUnderTest) -> None:
    write_checkpoint(training.job.output / "bars_checkpoints", 40)
    training.job = replace(training.job, resume=True)
    wrong = Script(class_="verification-failed", step=58)
    training.train(wrong, wrong, DONE)
    assert [resumed_at(run) for run in training.bench.made] == [40, 40, 0]


def test_no_checkpoint_is_resumed_from_past_the_steps_that_progress_accounts_for(training: TrainingUnderTest) -> None:
    training.train(
        Script(step=40, accounted=(39,)), Script(step=20, accounted=(20,)), Script(step=30, accounted=()), DONE
    )
    assert [resumed_at(run) for run in training.bench.made] == [0, 0, 20, 20]
    assert training.display.notices[-1] == (
        "the model was verified from step 20 on: other attempts made the steps before, which "
        "cannot be repeated for comparison; that they were made is known from progress alone"
    )


def test_steps_that_only_a_checkpoint_in_the_users_folder_tells_of_are_not_said_to_be_known(
    training: TrainingUnderTest,
) -> None:
    write_checkpoint(training.job.output / "bars_checkpoints", 40)
    training.job = replace(training.job, resume=True)
    training.train(Script(step=58), DONE)
    assert [resumed_at(run) for run in training.bench.made] == [40, 58]
    told = f"; those up to step 40 are from a checkpoint in {training.job.output}, whoever made it"
    assert training.display.notices[-1].endswith(f"is known from progress alone{told}")


def test_a_model_trained_without_the_checkpoints_it_was_given_is_said_to_be_made_from_its_first_step(
    training: TrainingUnderTest,
) -> None:
    training.train(Script(step=40), replace(DONE, reads_checkpoints=False))
    assert [resumed_at(run) for run in training.bench.made] == [0, 40]
    told = "the checkpoints could not be read, so the model was trained from its first step on"
    assert training.display.notices == [told]


def test_a_damaged_checkpoint_is_passed_over(training: TrainingUnderTest) -> None:
    with pytest.raises(IndexError):
        training.train(Script(step=20), Script(step=30))
    checkpoints = Path(training.bench.results.folder_of(training.bench.made[1].run_id).work.output, "bars_checkpoints")
    (last,) = checkpoints.glob("step-000000030.*")
    last.write_bytes(last.read_bytes()[:-1])
    training.train(DONE)
    assert resumed_at(training.bench.made[-1]) == 20


def test_an_injected_fault_is_for_the_first_attempt_and_marks_all_that_follows_from_it(
    training: TrainingUnderTest,
) -> None:
    training.job = replace(training.job, injected_fault="segv@35")
    assert training.train(Script(step=20), DONE).model
    assert [run.injected_fault for run in training.bench.made] == ["segv@35", "after segv"]
    commands = [
        resolve_run(run, RunFolder(training.job.output)).intent.commands["train"] for run in training.bench.made
    ]
    assert ["--inject-fault" in command for command in commands] == [True, False]


def test_attempts_of_earlier_trainings_stay_in_the_file(training: TrainingUnderTest) -> None:
    training.train(DONE)
    training.state = new_state("key", "cpu-plain", None)
    training.train(Script(), DONE)
    assert [line["attempt"] for line in training.lines] == [1, 1, 2]


def fragmenting(minute: int, share: float) -> Progress:
    memory = {"rss_bytes": 1, "device_allocated_bytes": int((1 - share) * (8 << 30)), "device_reserved_bytes": 8 << 30}
    told = {"wall": 0.0, "monotonic": minute * 60.0, "rank": 0, "pid": 1, "phase": "step", "done": minute}
    rest: dict[str, Any] = {"total": None, "max_step_s": None, "loss": None, "gradient_norm": None}
    return Progress.model_validate({"schema": 2, **told, **rest, "memory": memory})


IN_EVER_MORE_PIECES = [fragmenting(minute, 0.2 + minute / 20) for minute in range(10)]


@pytest.fixture
def fragmented(make_training: MakeTraining, dual_host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> TrainingUnderTest:
    monkeypatch.setattr(fragmentation, "WINDOW_SECONDS", 0.0)
    return make_training(dual_host, GPU_CELL)


def test_memory_in_ever_more_pieces_is_given_back_by_a_fresh_process(fragmented: TrainingUnderTest) -> None:
    training, lines = fragmented, IN_EVER_MORE_PIECES
    assert training.train(Script(step=20, lines=lines), DONE).model
    assert [(line["begin"], line["outcome"]) for line in training.lines] == [
        ("first", "interrupted"),
        ("planned-restart", "completed"),
    ]
    assert resumed_at(training.bench.made[1]) == 20
    assert training.bench.made[1].cell == training.job.cell
    assert "unused pieces rose from" in training.display.notices[0]


def test_restarts_that_keep_no_step_are_not_planned_without_end(fragmented: TrainingUnderTest) -> None:
    training, lines = fragmented, IN_EVER_MORE_PIECES
    gains = [Script(step=step, lines=lines) for step in (20, 40)]
    assert training.train(*gains, Script(lines=lines), replace(DONE, lines=lines)).model
    assert [line["outcome"] for line in training.lines] == ["interrupted", "interrupted", "interrupted", "completed"]
