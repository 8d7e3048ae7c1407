"""Tests of how progress is compared with the result: honest reports have no breach, invented ones have one."""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.evidence.app_reports import progress
from harness.evidence.app_reports.accounting import asked_of
from harness.evidence.app_reports.orphans import account_for
from harness.evidence.app_reports.rank_account import SeenAt
from harness.evidence.files.app_files import Progress, Result
from harness.evidence.files.run_files import Intent
from harness.evidence.files.work_folder import WorkFolder
from tests.harness.evidence.simulated_progress import (
    NONCE,
    ProgressLines,
    Values,
    accounting_of,
    breaches,
    each,
    expected,
    loss_of,
    result_of,
    write_end,
    write_start,
    write_training,
)


@pytest.fixture
def reported() -> ProgressLines:
    """Return the lines of an honest training of one model."""
    return write_end(write_training(write_start(ProgressLines())))


@pytest.fixture
def result(result_values: Values, reported: ProgressLines) -> Values:
    """Return the result of the training of `reported`."""
    return result_of(result_values, reported)


def scaled(values: Values, epochs: int, per_epoch: int) -> Values:
    """Return the values of a result with other numbers of epochs and steps."""
    losses = [{"epoch": n, "train": 0.6, "validation": 0.65} for n in range(1, epochs + 1)]
    return {
        **values, "epochs_requested": epochs, "epochs_done": epochs, "steps_per_epoch": per_epoch,
        "steps_done": epochs * per_epoch, "epoch_losses": losses,
    }  # fmt: skip


def test_progress_is_expected_of_every_rank_and_process(make_intent: Callable[..., Intent]) -> None:
    options = {"strategy": "ddp", "devices": 3, "model": ["mlp", "attention"], "epochs": 2}
    intent = make_intent(options=options, commands={"features": (), "train": ()})
    asked = asked_of(intent)
    assert (asked.ranks, asked.processes, asked.resumed, asked.epochs) == (3, 2, (0, 0), 2)
    assert (asked.contract, asked.nonce) == (intent.contract, intent.nonce)
    assert not asked.may_end_early
    assert asked_of(make_intent(options={**options, "patience": 2})).may_end_early


def test_what_lost_its_harness_is_accounted_for_to_the_last_line_of_each_rank(
    tmp_path: Path, make_intent: Callable[..., Intent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MOST_AT_ONCE", 1 << 12)
    monkeypatch.setattr(progress, "LEAST_AT_ONCE", 1 << 11)
    work = WorkFolder(tmp_path)
    for rank in range(2):
        lines = write_end(write_training(write_start(ProgressLines(rank)), 1, 1200, step_s=1.0)).lines
        written = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / work.PROGRESS.format(rank=rank)).write_text(written, encoding="utf-8")
    asked = make_intent(options={"strategy": "ddp", "devices": 2, "epochs": 1}, nonce=NONCE)
    accounting = account_for(asked, work, 1e6)
    assert (accounting.steps, accounting.breaches) == ((1200,), ())


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "step_s"),
    [(2, 16, 0.0625), (1, 1, 0.001), (3, 400, 0.00015), (2, 4, 20.0), (1, 7200, 1.0)],
    ids=["seconds", "one step", "a block of steps in no time", "slow", "hours"],
)
def test_an_honest_training_is_no_breach(epochs: int, per_epoch: int, step_s: float, result_values: Values) -> None:
    reported = write_end(write_training(write_start(ProgressLines()), epochs, per_epoch, step_s=step_s))
    values = result_of(scaled(result_values, epochs, per_epoch), reported)
    assert breaches(reported.lines, values, expected(epochs=epochs)) == ()


def ended_early(values: Values, reported: ProgressLines) -> Values:
    """Return a result that fits the lines of 3 of 5 epochs."""
    return result_of({**scaled(values, 3, 16), "epochs_requested": 5, "stopped_early": True}, reported)


def test_a_training_may_end_after_an_epoch_where_that_was_asked_for(result_values: Values) -> None:
    reported = write_end(write_training(write_start(ProgressLines()), 3, of_epochs=5))
    values = ended_early(result_values, reported)
    assert breaches(reported.lines, values, expected(epochs=5, may_end_early=True)) == ()
    assert breaches(reported.lines, values, expected(epochs=5)) == ("rank 0: it ended a model after step 48 of 80",)


def test_a_training_that_ends_early_does_so_after_an_epoch(result_values: Values) -> None:
    reported = write_end(write_training(write_start(ProgressLines()), 3, of_epochs=5))
    within = next(n for n, line in enumerate(reported.lines) if 32 < line["done"] < 48)
    del reported.lines[within + 1 : -2]
    for number, line in enumerate(reported.lines, 1):
        line["number"] = number
    found = breaches(reported.lines, ended_early(result_values, reported), expected(epochs=5, may_end_early=True))
    assert found[0] == f"rank 0: it ended a model after step {reported.lines[within]['done']} of 80"


def test_the_model_after_one_that_ended_early_is_another_though_the_line_between_them_was_lost(
    result_values: Values,
) -> None:
    reported = write_end(write_training(write_training(write_start(ProgressLines()), 3, of_epochs=5), 5))
    end = next(n for n, line in enumerate(reported.lines) if line["phase"] == "checkpoint" and line["total"] is None)
    earlier_lines, later = ProgressLines(), ProgressLines()
    earlier_lines.lines, later.lines = reported.lines[: end + 1], reported.lines[end + 1 :]
    earlier = ended_early(result_values, earlier_lines)
    main = result_of(scaled(result_values, 5, 16), later)
    keys = set(Result.model_fields["earlier"].annotation.__args__[0].model_fields)  # type: ignore[union-attr]
    values = {**main, "earlier": [{key: value for key, value in earlier.items() if key in keys}]}
    asked = expected(epochs=5, resumed=(0, 0), may_end_early=True)
    assert breaches(reported.lines, values, asked) == ()
    del reported.lines[end]
    assert breaches(reported.lines, values, asked) == ()


def test_every_rank_accounts_for_every_step(result: Values) -> None:
    ranks = [write_end(write_training(write_start(ProgressLines(rank)))) for rank in (0, 1)]
    lines = [line for reported in ranks for line in reported.lines]
    assert breaches(lines, result, expected(ranks=2)) == ()
    assert breaches(ranks[0].lines, result, expected(ranks=2)) == ("rank 1 reported no progress",)
    ranks[1].lines = [line for line in ranks[1].lines if line["done"] < 32 and line["phase"] != "teardown"]
    assert "rank 1: it did not report its end" in breaches(
        [line for reported in ranks for line in reported.lines], result, expected(ranks=2)
    )
    assert breaches(lines, result)[0] == "there is progress of rank 1 of 1"


def test_several_models_in_one_process(result_values: Values) -> None:
    reported = write_end(write_training(write_training(write_start(ProgressLines()))))
    earlier_lines, later = ProgressLines(), ProgressLines()
    cut = (
        next(n for n, line in enumerate(reported.lines) if line["phase"] == "checkpoint" and line["total"] is None) + 1
    )
    earlier_lines.lines, later.lines = reported.lines[:cut], reported.lines[cut:]
    main, earlier = result_of(result_values, later), result_of(result_values, earlier_lines)
    keys = set(Result.model_fields["earlier"].annotation.__args__[0].model_fields)  # type: ignore[union-attr]
    values = {**main, "earlier": [{key: value for key, value in earlier.items() if key in keys}]}
    assert breaches(reported.lines, values, expected(resumed=(0, 0))) == ()
    assert breaches(reported.lines, main) != ()
    assert breaches(earlier_lines.lines + later.lines[-1:], values, expected(resumed=(0, 0))) != ()


def test_features_in_a_process_of_their_own(result_values: Values) -> None:
    reported = ProgressLines()
    for phase in ("import", "data", "features", "checkpoint"):
        reported.write(phase)
    write_end(write_training(write_start(reported)))
    assert breaches(reported.lines, result_of(result_values, reported), expected(processes=2)) == ()
    # There was one process more than expected, then one fewer.
    assert breaches(reported.lines, result_of(result_values, reported))[0] == "rank 0: it ended a model without a step"
    alone = write_end(write_training(write_start(ProgressLines())))
    assert breaches(alone.lines, None, expected(processes=2))[0].endswith("before the process that trains")


@pytest.mark.parametrize("resumed", [5, 16, 20, 32], ids=["in an epoch", "between two", "in the last", "at the end"])
def test_a_resumed_training_accounts_for_what_it_did(resumed: int, result_values: Values) -> None:
    reported = write_end(write_training(write_start(ProgressLines()), resumed=resumed))
    values = {**deepcopy(result_values), "resumed_at": [resumed]}
    whole = write_end(write_training(write_start(ProgressLines())))
    values = result_of(values, whole)
    # The result may include the training time of the runs before.
    values["throughput"] = {"samples_per_second": 2000 / 1001.5, "train_seconds": 1001.5}
    values["time"]["device"] = 1001.5
    assert breaches(reported.lines, values, expected(resumed=(resumed,))) == ()
    # The run was not asked to resume.
    assert breaches(reported.lines, values) != ()
    # The run was given a checkpoint of another step.
    assert breaches(reported.lines, values, expected(resumed=(resumed - 1,))) != ()


def test_a_training_may_resume_between_an_epoch_and_its_validation(result_values: Values) -> None:
    reported = write_start(ProgressLines())
    reported.write("step", 16, 32)
    reported.write("validate", 0, 200)
    reported.write("checkpoint", 16, 32, epoch_losses={"epoch": 1, "train": 0.6, "validation": 0.65})
    reported.write("step", 16, 32)
    rest = write_end(write_training(write_start(ProgressLines(clock=reported.clock)), resumed=16))
    for line in rest.lines[6:]:
        reported.write(
            **{key: line[key] for key in ("phase", "done", "total", "loss", "gradient_norm", "epoch_losses")}
        )
    values = result_of({**result_values, "resumed_at": [16]}, reported)
    assert breaches(reported.lines, values, expected(resumed=(16,))) == ()


def test_a_wall_clock_that_was_set_back_is_no_breach(reported: ProgressLines, result: Values) -> None:
    for line in reported.lines[8:]:
        line["wall"] -= 3600
    assert breaches(reported.lines, result) == ()


@pytest.mark.parametrize("lost", range(1, 17))
def test_a_line_that_a_disk_tore_is_no_breach(lost: int, reported: ProgressLines, result: Values) -> None:
    del reported.lines[lost]
    assert breaches(reported.lines, result) == ()


def test_more_lines_that_are_missing_are_a_breach(reported: ProgressLines, result: Values) -> None:
    del reported.lines[9:13]
    assert breaches(reported.lines, result)[0] == "rank 0: 4 lines of its progress are missing"


def test_a_harness_that_looked_away_for_an_hour_sees_no_breach(reported: ProgressLines, result: Values) -> None:
    accounting = accounting_of(reported.lines, expected(), lambda _: SeenAt(500.0, 4000.0))
    assert accounting.close(Result.model_validate(result)) == ()


def test_a_line_that_was_written_late_is_no_breach(reported: ProgressLines, result: Values) -> None:
    def seen(at: float) -> SeenAt:
        # The disk stalls for half a minute in the first epoch.
        late = 30.0 if at > 501 else 0.0
        return SeenAt(at + late - 0.1, at + late)

    assert accounting_of(reported.lines, expected(), seen).close(None) == ()


@pytest.mark.parametrize(("stall", "found"), [(170.0, False), (300.0, True)])
def test_a_line_may_be_as_late_as_its_rank_may_stall(stall: float, *, found: bool, reported: ProgressLines) -> None:
    lines = reported.lines
    late = next(line for line in lines if line["phase"] == "step" and line["done"] > 16)["monotonic"] - 500

    for line in lines:
        if line["monotonic"] - 500 > late:
            line["monotonic"] += stall

    def seen(at: float) -> SeenAt:
        # The disk stalls while one line is written; those after it are prompt.
        by = at + stall if at == late else at
        return SeenAt(by - 0.1, by, 0.0)

    accounting = accounting_of(lines, expected(), seen, {"step": 180.0})
    assert bool(accounting.breaches) == found, accounting.breaches
    assert not found or "beside the 180 s that it may be late" in accounting.breaches[0]


def test_a_line_that_is_newer_than_when_it_was_read_is_a_breach(reported: ProgressLines) -> None:
    started = reported.lines[0]["monotonic"] - 500
    accounting = accounting_of(
        reported.lines[:10], expected(), lambda at: SeenAt(at - 0.1, at, started), {"step": 180.0}
    )
    assert not accounting.breaches
    for line in reported.lines[10:]:
        at = line["monotonic"] - 500
        line["monotonic"] += 20
        accounting.saw(Progress.model_validate(line), SeenAt(at - 0.1, at, started))
    assert any("it reports " in breach for breach in accounting.breaches)


def a_second_of(lines: list[Values], key: str, value: Any) -> None:
    """Change the second line that reports a loss."""
    [line for line in lines if line["loss"] is not None][1][key] = value


def cut_to_half(lines: list[Values]) -> None:
    at = max(n for n, line in enumerate(lines) if line["done"] == 16 and line["phase"] == "step")
    lines[at:] = [{**line, "number": lines[at]["number"] + n} for n, line in enumerate(lines[-2:])]


def without_validation(lines: list[Values]) -> None:
    lines[:] = [line for line in lines if line["phase"] != "validate"]
    for number, line in enumerate(lines, 1):
        line["number"] = number


def at_once_after_step_16(lines: list[Values]) -> None:
    late = [line for line in lines if line["done"] >= 16]
    for line in late:
        line["monotonic"] = late[0]["monotonic"]


def beyond_its_total(lines: list[Values]) -> None:
    next(each(lines, "validate"))["done"] = 201


def flipping(lines: list[Values]) -> None:
    """Insert lines that alternate between checkpoint and step and report no further step."""
    at = next(n for n, line in enumerate(lines) if line["done"] == 1) + 1
    pair = [{**lines[at - 1], "phase": phase} for phase in ("checkpoint", "step")]
    lines[at:at] = [dict(line) for line in pair * 3]
    for number, line in enumerate(lines, 1):
        line["number"] = number


def again(lines: list[Values]) -> None:
    lines += [{**line, "monotonic": line["monotonic"] + 10} for line in lines[:3]]


def index_of(lines: list[Values], phase: str, done: int, *, first: bool = True) -> int:
    """Return the index of the first or last line with this phase and this number done."""
    places = [n for n, line in enumerate(lines) if (line["phase"], line["done"]) == (phase, done)]
    return places[0 if first else -1]


def change(phase: str, at: int, *, first: bool = True, **values: Any) -> Callable[[list[Values]], object]:
    """Return an attack that changes one line."""
    return lambda lines: lines[index_of(lines, phase, at, first=first)].update(values)


def extra_model(lines: list[Values]) -> None:
    """Append the lines of one model more than was asked for."""
    more = write_training(ProgressLines(clock=lines[-1]["monotonic"])).lines
    lines[-1:] = [{**line, "number": lines[-2]["number"] + n} for n, line in enumerate(more, 1)]


def growing_total(lines: list[Values]) -> None:
    """Insert validation lines whose total grows with the number of samples that are done."""
    at = index_of(lines, "validate", 0) + 1
    lines[at:at] = [{**lines[at - 1], "done": 200, "total": 200}, {**lines[at - 1], "done": 201, "total": 300}]
    for number, line in enumerate(lines, 1):
        line["number"] = number


def validate_first_epoch_twice(lines: list[Values]) -> None:
    """Insert the validation of the first epoch a second time."""
    at = index_of(lines, "validate", 0)
    lines[at:at] = [{**line, "monotonic": lines[at]["monotonic"]} for line in lines[at : at + 3]]
    for number, line in enumerate(lines, 1):
        line["number"] = number


EPOCH: Values = {"epoch": 1, "train": 0.6, "validation": 0.65}


ATTACKS: dict[str, tuple[Callable[[list[Values]], object], str]] = {
    "no nonce": (lambda lines: lines[0].update(nonce=None), "rank 0: its progress lacks the run's nonce"),
    "another run's": (lambda lines: lines[3].update(nonce="f" * 32), "rank 0: its progress is of another run"),
    "done past total": (beyond_its_total, "rank 0: it has done 201 of 200 in phase validate"),
    "less done": (lambda lines: lines[12].update(done=0), "rank 0: it had done"),
    "a phase again": (lambda lines: lines[9].update(phase="data"), "rank 0: phase data cannot follow"),
    "NaN in progress": (lambda lines: a_second_of(lines, "loss", math.nan), "rank 0: a number in its progress is not"),
    "phases that flip": (flipping, "rank 0: 3 checkpoints of step 1"),
    "epochs never validated": (without_validation, "rank 0: epoch 1 was not validated"),
    "other steps in all": (lambda lines: lines[10].update(total=64), "rank 0: 32 steps became 64"),
    "steps that are no epochs": (lambda lines: lines[5].update(total=33), "rank 0: 33 steps cannot be 2 epochs"),
    "begun in the middle": (lambda lines: lines[5].update(done=8), "rank 0: it began at step 8"),
    "half of the work": (cut_to_half, "rank 0: it ended a model after step 16 of 32"),
    "begun again": (again, "rank 0: it began again"),
    "a total that grows": (growing_total, "rank 0: it had done 200 of 200 in phase validate, then 201 of 300"),
    "back by some steps": (change("checkpoint", 32, done=8), "rank 0: it went back from step 28 to 8"),
    "past the end of an epoch": (change("step", 16, done=24), "rank 0: step 24 comes before epoch 1 was validated"),
    "no losses of an epoch": (
        change("checkpoint", 16, epoch_losses=None),
        "rank 0: it validated, but reports no losses of the epoch",
    ),
    "an epoch that ends early": (
        change("checkpoint", 16, done=16, epoch_losses={**EPOCH, "epoch": 2}),
        "rank 0: epoch 2 of 16 steps ended at step 16",
    ),
    "an epoch again": (validate_first_epoch_twice, "rank 0: epoch 1 comes after epoch 1"),
    "a model too many": (extra_model, "rank 0: it trains model 2 of 1"),
    "a line twice": (lambda lines: lines.insert(4, lines[3]), "rank 0: line 4 of its progress comes after line 4"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_progress_that_no_training_writes_is_a_breach_at_once(name: str, reported: ProgressLines) -> None:
    attack, words = ATTACKS[name]
    attack(reported.lines)
    found = breaches(reported.lines, None)
    assert found
    assert found[0].startswith(words), found


def test_steps_faster_than_any_device_are_a_breach(result_values: Values) -> None:
    honest = write_end(write_training(write_start(ProgressLines()), 2, 500, step_s=0.01))
    at_once_after_step_16(honest.lines)
    found = breaches(honest.lines, None)
    assert found[0].endswith("steps in 0.0000 s, faster than any device")


@pytest.mark.parametrize("by", [-120, 120], ids=["back", "forward"])
def test_a_clock_that_is_not_the_hosts_is_a_breach(by: float, reported: ProgressLines) -> None:
    accounting = accounting_of(reported.lines[:10], expected())
    for line in reported.lines[10:]:
        at = line["monotonic"] - 500
        line["monotonic"] += by
        accounting.saw(Progress.model_validate(line), SeenAt(at - 0.1, at))
    assert "clock" in accounting.breaches[0]


LIES: dict[str, tuple[Values, str]] = {
    "an old result": ({"nonce": "f" * 32}, "the result is of another run"),
    "no nonce": ({"nonce": None}, "the result lacks the run's nonce"),
    "an older contract": ({"contract": 1}, "the result follows contract 1, its app 2"),
    "more steps than were made": (
        {"steps_per_epoch": 32, "steps_done": 64},
        "rank 0, mlp: progress ends at step 32 of 32, the result has 64 of 64",
    ),
    "a loss hidden": (
        {
            "epoch_losses": [
                {"epoch": 1, "train": 0.0, "validation": 0.0},
                {"epoch": 2, "train": 0.6, "validation": 0.65},
            ]
        },
        "mlp: epoch 1 had losses 0.6 and 0.65 in its progress, others in the result",
    ),
    "an epoch more": (
        {"epoch_losses": [{"epoch": n, "train": 0.6, "validation": 0.65} for n in (1, 2, 3)]},
        "rank 0, mlp: progress does not show that epoch 3 was validated",
    ),
    "no times": ({"time": None}, "mlp: the result does not say where its time went"),
    "a model more": ({"steps_done": 33}, "rank 0, mlp: progress ends at step 32 of 32, the result has 33 of 32"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_result_that_progress_does_not_account_for_is_a_breach(
    name: str, reported: ProgressLines, result: Values
) -> None:
    changes, words = LIES[name]
    assert breaches(reported.lines, {**result, **changes}) == (words,)


def test_the_loss_of_a_step_is_the_same_in_progress_and_result(reported: ProgressLines, result: Values) -> None:
    step = next(line["done"] for line in reported.lines if line["loss"] is not None)
    assert step <= 16
    result["first_steps"][step - 1]["loss"] = 0.5
    assert breaches(reported.lines, result) == (
        f"mlp: step {step} had loss {loss_of(step):g} in its progress, 0.5 in the result",
    )


def test_the_norm_and_the_validation_loss_are_the_same_in_progress_and_result(
    reported: ProgressLines, result: Values
) -> None:
    step = next(line["done"] for line in reported.lines if line["loss"] is not None)
    other_norm = deepcopy(result)
    other_norm["first_steps"][step - 1]["gradient_norm"] = None
    assert len(breaches(reported.lines, other_norm)) == 1
    result["epoch_losses"][1]["validation"] = 0.1
    assert breaches(reported.lines, result) == (
        "mlp: epoch 2 had losses 0.6 and 0.65 in its progress, others in the result",
    )


def test_a_result_says_where_it_was_resumed_and_shows_every_model(reported: ProgressLines, result: Values) -> None:
    resumed = write_end(write_training(write_start(ProgressLines()), resumed=20))
    assert breaches(resumed.lines, {**result, "resumed_at": [20]}, expected(resumed=(20,))) == ()
    assert breaches(resumed.lines, result, expected(resumed=(20,))) == (
        "rank 0, mlp: it resumed at step 20, the result says nothing",
    )
    without = [line for line in reported.lines if line["phase"] not in ("first-step", "step", "validate", "checkpoint")]
    assert "rank 0: it trained 0 models, the result has 1" in breaches(without, result)


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("step_s", [1.0, 30.0])
def test_time_that_nobody_saw_pass_is_a_breach(factor: float, step_s: float, result_values: Values) -> None:
    reported = write_end(write_training(write_start(ProgressLines()), step_s=step_s))
    values = result_of(result_values, reported)
    assert breaches(reported.lines, values) == ()
    seconds = values["throughput"]["train_seconds"] * factor
    speed = 2000 / seconds
    claimed = {"throughput": {"samples_per_second": speed, "train_seconds": seconds}}
    found = breaches(reported.lines, {**values, **claimed, "time": {**values["time"], "device": seconds}})
    assert len(found) == 1
    assert found[0].startswith(f"mlp: it claims {seconds:.1f} s, and was seen to train for")


@pytest.mark.parametrize(("samples_per_second", "train_seconds"), [(1e6, 1.0), (1.0, 1.0)], ids=["a speed", "a time"])
def test_speed_and_time_that_contradict_each_other_are_a_breach(
    samples_per_second: float, train_seconds: float, reported: ProgressLines, result: Values
) -> None:
    claimed = {"samples_per_second": samples_per_second, "train_seconds": train_seconds}
    assert len(breaches(reported.lines, {**result, "throughput": claimed})) == 2
    claimed["train_seconds"] = result["throughput"]["train_seconds"]
    assert len(breaches(reported.lines, {**result, "throughput": claimed})) == 1


def test_of_an_old_contract_nothing_is_asked(reported: ProgressLines, result: Values) -> None:
    lines = [{**line, "nonce": None, "number": None} for line in reported.lines]
    assert breaches(lines, {**result, "nonce": None, "contract": 1}, expected(contract=1)) == ()
    assert breaches(lines, None) != ()


def test_the_end_of_a_model_has_to_be_seen(reported: ProgressLines, result: Values) -> None:
    *lines, _, _, last = reported.lines
    last["number"] = lines[-1]["number"] + 1
    assert breaches([*lines, last], result) == ("rank 0, mlp: progress does not show its end",)


def test_a_breach_of_every_line_is_reported_once(reported: ProgressLines) -> None:
    for line in reported.lines:
        line["nonce"] = None
    assert breaches(reported.lines, None) == ("rank 0: its progress lacks the run's nonce",)


HUGE = 10**400


@pytest.mark.parametrize("key", ["done", "total", "number"])
def test_numbers_that_nothing_counts_up_to_are_no_progress(key: str, reported: ProgressLines) -> None:
    with pytest.raises(ValidationError):
        Progress.model_validate({**reported.lines[8], key: HUGE})
    with pytest.raises(ValidationError):
        Progress.model_validate({**reported.lines[8], key: -1})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308])
def test_numbers_that_overflow_are_breaches_and_no_errors(
    value: float, reported: ProgressLines, result: Values
) -> None:
    # A line whose time is no number is not taken for progress.
    for key in ("max_step_s", *(("monotonic", "wall") if math.isfinite(value) else ())):
        lines = deepcopy(reported.lines)
        lines[8][key] = value
        breaches(lines, result)
    spoilt = deepcopy(result)
    spoilt["time"] = {**spoilt["time"], "device": value, "loader": -value, "copy": value}
    assert breaches(reported.lines, spoilt)
    spoilt["throughput"] = {"samples_per_second": value, "train_seconds": value}
    assert breaches(reported.lines, spoilt)
    for key in ("steps_per_epoch", "steps_done", "epochs_requested"):
        with pytest.raises(ValidationError):
            Result.model_validate({**result, key: HUGE})


def test_no_more_breaches_are_kept_than_a_line_can_hold(reported: ProgressLines) -> None:
    for number, line in enumerate(reported.lines):
        line["done"] = 1000 + number
    assert len(breaches(reported.lines, None)) == 3


@pytest.mark.parametrize(("late", "found"), [(0.0, False), (0.9, False), (1.5, True)])
def test_no_app_tells_of_more_time_than_it_had(late: float, reported: ProgressLines, *, found: bool) -> None:
    """An app may replay the progress of an earlier run, which began `late` seconds before this one."""
    first = reported.lines[0]["monotonic"]

    def seen(at: float) -> SeenAt:
        began = first - 500 + late
        return SeenAt(max(at, began), max(at, began) + 0.01, began)

    breaches_found = accounting_of(reported.lines, expected(), seen).breaches
    assert [one.startswith("rank 0: it reports ") for one in breaches_found] == [True] * found


@pytest.mark.parametrize("megabytes", [0, 100])
def test_an_app_that_goes_through_its_data_again_and_again_is_ended(megabytes: int) -> None:
    asked = expected(data_bytes=megabytes << 20)
    reported = write_start(ProgressLines())
    for _ in range(megabytes // 4 + 3):
        reported.write("features", 0, 10)
        reported.write("features", 10, 10)
    assert accounting_of(reported.lines, asked).breaches == ()
    for _ in range(megabytes // 4 + 4):
        reported.write("features", 0, 10, after=60)
    assert accounting_of(reported.lines, asked).breaches[0].startswith("rank 0: it began phase features ")


def test_each_process_has_its_own_time_and_blocks() -> None:
    reported, starts = ProgressLines(), []
    for _ in range(2):
        starts.append(reported.clock - 500)
        write_start(reported)
        for _ in range(4):
            reported.write("features", after=100)

    def seen(at: float) -> SeenAt:
        return SeenAt(at - 0.1, at + 0.1, max(start for start in starts if start < at))

    assert accounting_of(reported.lines, expected(processes=2), seen).breaches == ()
