"""Tests that a training that is interrupted and resumed ends with bitwise identical weights."""

import hashlib
import io
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vpoc.errors import Interrupted, UserError
from vpoc.progress import Progress
from vpoc.training import checkpoint
from vpoc.training.fit import Fit
from vpoc.training.flat.flat_adam import FlatAdam
from vpoc.training.flat.flat_loop import VectorTrainer
from vpoc.training.loop import FIRST_STEPS
from vpoc.training.resumable import require_resumable
from vpoc.training.run import train


def trained(options, folder, progress=None):
    messages = []
    options = replace(options, run_dir=folder / "run")
    train(options, folder / "out", "m", progress or Progress(options.run_dir), messages.append)
    return json.loads((folder / "run" / "result.json").read_text()), messages


def facts(result):
    """Return the results that must not depend on interruptions."""
    names = "rank_weights_sha256 first_steps epoch_losses steps_done steps_skipped"
    return {name: result[name] for name in names.split()} | {"sha256": result["model"]["sha256"]}


class Stopping(Progress):
    """A Progress that interrupts the training at a step."""

    def __init__(self, folder, at):
        super().__init__(folder)
        self.at = at

    def step(self, done, *what):
        super().step(done, *what)
        if self.holds_interrupts and done >= self.at:
            self.interrupt(15)


ATTENTION = {"model": ("attention-small",), "epochs": 1, "batch_size": 16}
KINDS = {
    "plain": {},
    "accumulation": {"micro_batch_size": 3},
    "chunks": {"chunk_rows": 24},
    "workers": {"loader_workers": 1},
    "by hand": {"loop": "resident"},
    "one step an epoch": {"batch_size": 1024},
    "resident chunks": {"loop": "resident", "chunk_rows": 24, "micro_batch_size": 3},
    "best epoch": {"keep": "best", "schedule": "cosine"},
    "clipped, by hand": {"loop": "resident", "keep": "best", "clip_norm": 0.01},
    "bfloat16": {"use_mixed_precision": True},
    "layers on two devices": {"strategy": "model-parallel"},
    "attention": ATTENTION,
    "recomputed attention": {**ATTENTION, "activation_checkpointing": True, "loop": "resident"},
}


# Tested every time; the other kinds combine two of these, or change what the steps of one compute.
ALWAYS = ("plain", "chunks", "workers", "by hand", "best epoch", "layers on two devices", "attention")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k if k in ALWAYS else pytest.param(k, marks=pytest.mark.long) for k in KINDS])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(options, tmp_path, kind):
    chosen = options(**KINDS[kind])
    whole, _ = trained(chosen, tmp_path / "whole")
    stops = 0
    for at in (1, 2, whole["steps_per_epoch"] + 3):
        if at >= whole["steps_done"]:
            break
        with pytest.raises(Interrupted):
            trained(replace(chosen, resume=stops > 0), tmp_path / "cut", Stopping(None, at))
        stops += 1
    result, messages = trained(replace(chosen, resume=True), tmp_path / "cut")
    assert facts(result) == facts(whole)
    assert len(result["resumed_at"]) == stops
    assert any("resumed after step" in line for line in messages)
    curves = [(tmp_path / name / "out" / "m_curves.csv").read_text().splitlines() for name in ("whole", "cut")]
    losses = [[line for line in lines if "_loss" in line] for lines in curves]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_two_models_are_taken_up_where_they_were(options, tmp_path):
    chosen = options(model=("mlp", "attention-small"), batch_size=64, epochs=1)
    whole, _ = trained(chosen, tmp_path / "whole")
    with pytest.raises(Interrupted):
        trained(chosen, tmp_path / "cut", Stopping(None, 2))
    result, messages = trained(replace(chosen, resume=True), tmp_path / "cut")
    assert facts(result) == facts(whole)
    assert facts(result["earlier"][0]) == facts(whole["earlier"][0])
    assert [result["earlier"][0]["model_kind"], result["model_kind"]] == ["mlp", "attention-small"]
    assert (tmp_path / "cut" / "out" / "m_mlp.pt").exists()
    assert any("no checkpoint" in line for line in messages)


@pytest.mark.slow
def test_without_a_checkpoint_it_starts_from_the_beginning_and_says_so(options, tmp_path):
    whole, _ = trained(options(epochs=1), tmp_path / "whole")
    result, messages = trained(options(epochs=1, resume=True), tmp_path / "new")
    assert facts(result) == facts(whole)
    assert any(
        line.startswith("--resume: no checkpoint in ") and line.endswith("from the beginning") for line in messages
    )


def checkpoints(folder):
    return sorted((folder / "out" / "m_checkpoints").iterdir())


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(options, tmp_path):
    chosen = options(checkpoint_every=0.0, epochs=1)
    whole, _ = trained(chosen, tmp_path)
    assert len(checkpoints(tmp_path)) == checkpoint.CHECKPOINTS_KEPT
    last, before = checkpoints(tmp_path)[:0:-1]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    before.write_bytes(before.read_bytes()[:-100])
    result, messages = trained(replace(chosen, resume=True), tmp_path)
    assert facts(result) == facts(whole)
    assert [line for line in messages if "SHA-256" in line] == [
        f"{path}: damaged, its SHA-256 is not the one in its name; the checkpoint before it is used"
        for path in (last, before)
    ]


@pytest.mark.slow
def test_a_finished_training_is_not_done_again(options, tmp_path):
    whole, _ = trained(options(), tmp_path)
    result, _ = trained(options(resume=True), tmp_path)
    assert facts(result) == facts(whole)
    assert result["resumed_at"] == [whole["steps_done"]]


def rewritten(path, change):
    """Change the document of a checkpoint, and name the file by its new digest."""
    document = torch.load(path, weights_only=True)
    change(document)
    buffer = io.BytesIO()
    torch.save(document, buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    path.with_name(f"{path.name.split('.')[0]}.{digest}.pt").write_bytes(buffer.getvalue())
    path.unlink()


@pytest.mark.slow
def test_a_checkpoint_of_another_version_is_one_line(options, tmp_path):
    trained(options(epochs=1), tmp_path)
    for schema in (1, 2, 4):
        rewritten(checkpoints(tmp_path)[-1], lambda document, schema=schema: document.update(schema=schema))
        with pytest.raises(UserError, match=r"a checkpoint of another version of vpoc; train without --resume"):
            trained(options(epochs=2, resume=True), tmp_path)


INVENTED = {
    "no state": (("state",), {}),
    "a state that is a tensor": (("state",), torch.zeros(0)),
    "no weights": (("state", "weights"), {}),
    "a weight of another shape": (("state", "weights", "4.bias"), torch.zeros(2, 3)),
    "a weight that would be broadcast": (("state", "weights", "4.weight"), torch.zeros(1)),
    "kept weights that are text": (("state", "kept"), {"0.weight": "x"}),
    "a moment of another shape": (("state", "adam", "0.weight", "exp_avg_sq"), torch.zeros(3)),
    "a moment that is a number": (("state", "adam", "4.bias", "exp_avg"), 10**30),
    "moments that are a tensor": (("state", "adam", "4.weight"), torch.zeros(2)),
    "a negative step of Adam": (("state", "adam", "4.bias", "step"), torch.tensor(-1.0)),
    "a step of Adam that is text": (("state", "adam", "4.bias", "step"), "1"),
    "too many steps": (("state", "steps_done"), 10**400),
    "a count that is a tensor": (("state", "steps_skipped"), torch.zeros(3)),
    "a negative batch": (("position", "batch"), -3),
    "the facts of a step that are a number": (("history", "first_steps"), [1e300]),
    "text for a loss": (("history", "first_steps", 0, "loss"), "\x1b[31m"),
    "losses that are a number": (("history", "epoch_losses"), 2**63),
    "an epoch without losses": (("history", "epoch_losses"), [{"epoch": 1}]),
    "a loss that is not finite": (("history", "epoch_losses", 0, "validation"), float("nan")),
    "an accuracy that is not finite": (("history", "accuracy"), float("nan")),
    "no starts": (("history", "resumed_at"), None),
    "text for a start": (("history", "resumed_at"), ["\x1b[31m"]),
    "text for seconds": (("history", "seconds"), {"device": "x"}),
    "text in a curve": (("history", "curves", "losses", 0, 0), "\x1b[31m"),
    "fewer losses than steps": (("history", "curves", "losses", 1), []),
    "a validation without a loss": (("history", "curves", "validation"), [[1]]),
    "memory without kinds": (("history", "curves", "memory", 0), [[1, 2.0]]),
    "kept weights that are not finite": (("state", "kept", "4.bias"), torch.full((1,), float("nan"))),
    "kept weights with a gradient": (("state", "kept", "4.bias"), torch.zeros(1, requires_grad=True)),
    "no kept weights": (("state", "kept"), None),
    "a moment whose numbers are one": (("state", "adam", "4.weight", "exp_avg"), torch.zeros(1).expand(1, 16)),
    "a step of Adam that is true": (("state", "adam", "4.bias", "step"), torch.tensor(data=True)),
    "steps of Adam": (("state", "adam", "4.bias", "step"), torch.ones(1)),
    "more steps skipped in a row than skipped": (("state", "skipped_in_a_row"), 1),
    "no first steps": (("history", "first_steps"), []),
    "a loss that is a list": (("history", "first_steps", 0, "loss"), [1.0]),
    "a sum of losses after the epoch": (("history", "loss"), 1.0),
    "a start that is a list": (("history", "resumed_at"), [[1]]),
    "a fault that there is none of": (("history", "injected_fault"), "\x1b[31m"),
    "seconds without a finite sum": (("history", "seconds"), {"device": 1e308, "loader": 1e308}),
    "a sum in a curve that is a list": (("history", "curves", "losses", 4), [1.0]),
    "a step in a curve that is a list": (("history", "curves", "losses", 0, 0), [1]),
    "a validation that is a list": (("history", "curves", "validation"), [[[1], 2.0]]),
    "memory that is a list": (("history", "curves", "memory", 0), [[1, 2.0, [3], 4, 5, 6]]),
    "memory of more kinds": (("history", "curves", "memory", 2), [1, 2.0, 3, 4, 5, 6, 7]),
    "a number of samples that is a list": (("history", "curves", "memory", 3), [2]),
}


def changed(path, place, value):
    """Set the value at a place of a checkpoint's document."""

    def change(document):
        *outer, last = place
        for part in outer:
            document = document[part]
        document[last] = value

    rewritten(path, change)


@pytest.mark.slow
def test_a_checkpoint_that_somebody_invented_is_one_line(options, tmp_path):
    trained(options(epochs=1, keep="best"), tmp_path)
    intact = checkpoints(tmp_path)[-1]
    content = intact.read_bytes()
    for name, (place, value) in INVENTED.items():
        changed(intact, place, value)
        print(name)  # shown where the test fails
        with pytest.raises(UserError, match="holds no state of this training; train without --resume"):
            trained(options(epochs=2, keep="best", resume=True), tmp_path)
        checkpoints(tmp_path)[-1].unlink()
        intact.write_bytes(content)


@pytest.mark.slow
def test_the_number_of_epochs_in_a_checkpoint_takes_no_memory(options, tmp_path):
    steps = trained(options(epochs=1), tmp_path)[0]["steps_done"]
    epochs = 2_000_000

    def change(document):
        document["position"]["epoch"] = epochs + 1
        document["state"]["steps_done"] = epochs * steps
        first = document["history"]["first_steps"][0]
        document["history"]["first_steps"] = [{**first, "step": step} for step in range(1, FIRST_STEPS + 1)]

    rewritten(checkpoints(tmp_path)[-1], change)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="holds no state of this training; train without --resume"):
            trained(options(epochs=2, resume=True), tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 * epochs
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "weight"), [(0.0, 0.0), (1e308, 1e-308), (-1.0, -1.0)])
def test_a_mean_loss_of_an_epoch_that_cannot_be_is_one_line(options, tmp_path, loss, weight):
    with pytest.raises(Interrupted):
        trained(options(epochs=1), tmp_path, Stopping(None, 2))
    changed(checkpoints(tmp_path)[-1], ("history", "loss"), loss)
    changed(checkpoints(tmp_path)[-1], ("history", "weight"), weight)
    with pytest.raises(UserError, match="holds no state of this training; train without --resume"):
        trained(options(epochs=1, resume=True), tmp_path)


SCALES = {"scale": (0.0, -1.0, 1e300, "x"), "growth_interval": ("x", 0), "_growth_tracker": (1 << 40, 1.5)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [(name, value) for name in SCALES for value in SCALES[name]])
def test_a_loss_scale_that_cannot_be_is_one_line(options, tmp_path, name, value):
    halves = {"use_mixed_precision": True, "mixed_precision_dtype": "float16"}
    trained(options(epochs=1, **halves), tmp_path)
    changed(checkpoints(tmp_path)[-1], ("state", "scaler", name), value)
    with pytest.raises(UserError, match="holds no state of this training; train without --resume"):
        trained(options(epochs=2, resume=True, **halves), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value"), [(("position", "epoch"), "x"), (("manner", "torch"), torch.zeros(2)), (("identity",), None)]
)
def test_a_file_without_settings_to_compare_is_no_checkpoint(options, tmp_path, place, value):
    trained(options(epochs=1), tmp_path)
    changed(checkpoints(tmp_path)[-1], place, value)
    _, messages = trained(options(epochs=1, resume=True), tmp_path)
    assert any("holds no checkpoint, though it is named like one" in line for line in messages)


def test_more_steps_than_the_moments_can_count_are_resumed_at_their_number():
    """From 2^24 on, the type of their step holds not every number."""
    network = torch.nn.Sequential(torch.nn.Linear(3, 1))
    names, done = [name for name, _ in network.named_parameters()], (1 << 24) + 3
    adam = FlatAdam(network.parameters(), lambda _: 1e-3)
    adam.steps = done
    moments = dict(zip(names, adam.state_dict()["state"].values(), strict=True))
    assert moments[names[0]]["step"].item() > done
    state = {"weights": network.state_dict(), "adam": moments, "scaler": {}, "steps_done": done}
    state |= {"steps_skipped": 0, "skipped_in_a_row": 0, "kept": None}
    first_steps = [{"step": step, "loss": 0.5, "gradient_norm": 0.1} for step in range(1, FIRST_STEPS + 1)]
    history = checkpoint.History(first_steps=first_steps, loss=1.0, weight=2.0)
    found = checkpoint.Checkpoint(Path("c"), {}, {}, checkpoint.Position(1, done), history, state)
    require_resumable(found, network.state_dict(), {}, 1 << 25, validates=True, chooses=False)
    adam.steps = 0
    VectorTrainer.load_moments(SimpleNamespace(adam=adam, steps_done=done), moments)
    assert adam.steps == done


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, pytest.param(9, marks=pytest.mark.long), 14])
def test_the_best_epoch_is_still_known_after_a_stop(options, tmp_path, at):
    """The training is so fast that it gets worse and stops before its last epoch."""
    chosen = options(epochs=6, keep="best", patience=2, learning_rate=0.3, schedule="cosine")
    whole, _ = trained(chosen, tmp_path / "whole")
    assert whole["stopped_early"]
    assert whole["kept_epoch"] < whole["epochs_done"] < 6
    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        trained(chosen, folder, Stopping(folder / "run", at))
    result, _ = trained(replace(chosen, resume=True), folder)
    for name in ("kept_epoch", "epochs_done", "stopped_early", "kept_weights_sha256"):
        assert result[name] == whole[name], name
    assert facts(result) == facts(whole)
    again, _ = trained(replace(chosen, resume=True), folder)
    assert facts(again) == facts(whole), "it has ended"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["best", "last"])
def test_another_epoch_to_keep_is_refused_as_its_weights_may_be_gone(options, tmp_path, first):
    other = {"best": "last", "last": "best"}[first]
    trained(options(epochs=1, keep=first, patience=2), tmp_path)
    with pytest.raises(UserError, match=f"was trained with keep {first}, this run has {other}"):
        trained(options(epochs=2, keep=other, patience=2, resume=True), tmp_path)


@pytest.mark.slow
def test_a_schedule_is_of_so_many_epochs(options, tmp_path):
    trained(options(epochs=1, schedule="linear"), tmp_path)
    with pytest.raises(UserError, match="was trained with epochs 1, this run has 2"):
        trained(options(epochs=2, schedule="linear", resume=True), tmp_path)


def test_fewer_epochs_than_are_done_are_refused(options, tmp_path):
    trained(options(epochs=2), tmp_path)
    with pytest.raises(UserError, match="2 epochs are done; give --epochs as many, or more"):
        trained(options(epochs=1, resume=True), tmp_path)


def test_fewer_epochs_than_are_begun_are_refused(options, tmp_path):
    """The weights are those of some steps of the second epoch."""
    steps = trained(options(epochs=1), tmp_path / "one")[0]["steps_done"]
    with pytest.raises(Interrupted):
        trained(options(epochs=2), tmp_path, Stopping(None, steps + 1))
    with pytest.raises(UserError, match="2 epochs are begun; give --epochs as many, or more"):
        trained(options(epochs=1, resume=True), tmp_path)


def test_more_epochs_continue_from_the_end(options, tmp_path):
    longer, _ = trained(options(epochs=2), tmp_path / "longer")
    trained(options(epochs=1), tmp_path / "more")
    result, _ = trained(options(epochs=2, resume=True), tmp_path / "more")
    assert facts(result) == facts(longer)


@pytest.mark.slow
def test_a_checkpoint_of_another_training_is_refused(options, tmp_path):
    trained(options(epochs=1), tmp_path)
    for other, difference in (
        ({"seed": 8}, "seed 7, this run has 8"),
        ({"batch_size": 9}, "batch-size 8, this run has 9"),
        ({"hidden_layers": (4,)}, r"hidden-layers \[8, 4\], this run has \[4\]"),
        ({"lookback": 21}, "lookback 20, this run has 21"),
        ({"target": "up_30"}, "target prior_vpoc_touched, this run has up_30"),
        ({"learning_rate": 0.5}, "learning-rate 0.001, this run has 0.5"),
        ({"weight_decay": 0.5}, "weight-decay 0.01, this run has 0.5"),
        ({"clip_norm": 0.5}, "clip-norm 1.0, this run has 0.5"),
        ({"schedule": "linear"}, "schedule constant, this run has linear"),
        ({"chunk_rows": 24}, "chunk-rows None, this run has 24"),
        ({"patience": 3}, "choosing False, this run has True"),
        ({"placement": "close"}, "placement uniform, this run has close"),
    ):
        with pytest.raises(UserError, match=f"was trained with {difference}; give the same, or train without --resume"):
            trained(options(epochs=1, resume=True, **other), tmp_path)


@pytest.mark.slow
def test_a_training_with_other_dates_of_rolls_is_refused(options, tmp_path):
    rolls = tmp_path / "rolls.csv"
    rolls.write_text("date\n2018-01-04\n")
    trained(options(epochs=1, rolls=str(rolls)), tmp_path)
    rolls.write_text("date\n2018-01-25\n")
    with pytest.raises(UserError, match=r"was trained with rolls-sha256 [0-9a-f]{64}, this run has [0-9a-f]{64};"):
        trained(options(epochs=1, rolls=str(rolls), resume=True), tmp_path)


@pytest.mark.slow
def test_another_manner_resumes_and_says_that_bits_differ(options, tmp_path):
    trained(options(epochs=1), tmp_path)
    _, messages = trained(options(epochs=2, resume=True, micro_batch_size=3, sdpa="math"), tmp_path)
    told = "with micro_batch_size 3 (was 8), sdpa math (was auto) the last digits may differ"
    assert [line for line in messages if told in line], messages


@pytest.mark.slow
def test_checkpoints_of_before_are_kept_when_not_asked_to_resume(options, tmp_path):
    trained(options(epochs=1), tmp_path)
    names = [path.name for path in checkpoints(tmp_path)]
    _, messages = trained(options(epochs=1, seed=8), tmp_path)
    kept = tmp_path / "out" / "m_checkpoints.previous"
    assert sorted(path.name for path in kept.iterdir()) == names
    assert any(f"are kept in {kept}" in line for line in messages)


def test_a_model_that_is_not_finite_gets_no_checkpoint(options, tmp_path, monkeypatch):
    honest = Fit._note

    def spoil(self, step, *what):
        if step.number == 3:
            self.trainer.strategy.model[0].bias.data[0] = float("-inf")
        honest(self, step, *what)

    monkeypatch.setattr(Fit, "_note", spoil)
    with pytest.raises(UserError, match="weights that are not finite"):
        trained(options(checkpoint_every=0.0), tmp_path)
    assert [path.name[:14] for path in checkpoints(tmp_path)] == ["step-000000001", "step-000000002"]
