import json
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vpoc.data.load import load_bars
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.store import write_features
from vpoc.features.table import NAMES
from vpoc.files import sha256_file
from vpoc.profile.device import paths
from vpoc.progress import Progress
from vpoc.training import checkpoint, fit, loop
from vpoc.training.flat.flat_loop import VectorTrainer
from vpoc.training.model_file.artefact import load_model, weights_sha256
from vpoc.training.result import constant_rate_loss
from vpoc.training.run import train
from vpoc.training.strategies.single import Single
from vpoc.training.verify import verify

RESULT_KEYS = """
schema app_version command workload_hash options data python framework jax torch numpy polars device devices strategy
world_size threads dtype injected_fault sessions model_kind batch_size micro_batch_size samples epochs_requested
epochs_done stopped_early kept_epoch steps_per_epoch steps_done steps_skipped resumed_at first_steps states epoch_losses
throughput time rank_weights_sha256 kept_weights_sha256 model metadata_file
contract nonce earlier memory
"""


def refuse(word):
    raise AssertionError(word)


def trained(options, folder, name="m"):
    """Train and return the result, the metadata and the lines that were printed."""
    said = []
    options = replace(options, run_dir=folder / "run")
    train(options, folder / "out", name, Progress(options.run_dir), said.append)
    result = json.loads((folder / "run" / "result.json").read_text(), parse_constant=refuse)
    metadata = json.loads((folder / "out" / f"{name}_metadata.json").read_text(), parse_constant=refuse)
    return result, metadata, said


def test_without_a_folder_for_temporary_files_nothing_is_trained(options, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    with pytest.raises(UserError, match="; set TMPDIR to a folder that can be written"):
        trained(options(), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_result_says_what_was_done(options, tmp_path):
    result, metadata, said = trained(options(workload_hash="abc"), tmp_path)
    assert list(result) == RESULT_KEYS.split()
    assert (result["contract"], result["nonce"]) == (2, None)
    assert (result["schema"], result["command"], result["workload_hash"]) == (2, "train", "abc")
    assert result["options"]["hidden_layers"] == [8, 4]
    asked = {"as_of": "close", "placement": "uniform", "value_area": "two_row", "rth_close": "16:00", "rolls": "auto"}
    assert result["options"].items() >= (asked | {"vpoc_path": "cpu"}).items()
    assert result["sessions"]["total"] == 26
    assert result["sessions"]["used"] == 6
    assert result["epochs_requested"] == result["epochs_done"] == 2
    assert result["steps_per_epoch"] == math.ceil(result["samples"]["train"] / 8)
    assert result["steps_done"] == 2 * result["steps_per_epoch"]
    assert result["steps_skipped"] == 0
    assert [step["step"] for step in result["first_steps"]] == list(range(1, 17))
    assert list(result["first_steps"][0]) == ["step", "loss", "gradient_norm"]
    assert [epoch["epoch"] for epoch in result["epoch_losses"]] == [1, 2]
    assert (result["device"], result["dtype"], result["world_size"]) == ("cpu", "float32", 1)
    assert result["torch"]["version"] == torch.__version__
    assert result["devices"][0]["device"] == "cpu"
    assert result["devices"][0]["gfx"] is None
    assert result["throughput"]["samples_per_second"] > 0
    assert result["data"]["rows"] == 26 * 138
    model = tmp_path / "out" / result["model"]["file"]
    assert sha256_file(model) == result["model"]["sha256"] == metadata["model"]["sha256"]
    assert model.stat().st_size == result["model"]["bytes"]
    assert result["model"]["parameters"] == len(NAMES) * 8 + 8 + 8 * 4 + 4 + 4 + 1
    assert metadata["features"] == list(NAMES)
    assert metadata["metrics"]["validation"]["loss"] == result["epoch_losses"][-1]["validation"]
    assert metadata["metrics"]["constant_rate_loss"] > 0
    assert len(result["rank_weights_sha256"]) == 1
    assert said[1].startswith("mlp: 6 of 26 sessions (20 lookback): ")
    assert "torch" in said[0]
    assert "rows per bar" in said[0]


@pytest.mark.parametrize("loop_", ["plain", "resident"])
def test_the_training_loss_of_an_epoch_is_the_mean_over_its_samples_also_of_a_short_last_batch(
    options, tmp_path, loop_
):
    result, _, said = trained(options(epochs=1, batch_size=24, loop=loop_, learning_rate=0.05), tmp_path)
    losses = np.array([step["loss"] for step in result["first_steps"]])
    assert len(losses) == result["steps_done"]
    samples = np.full(len(losses), 24)
    samples[-1] = result["samples"]["train"] - samples[:-1].sum()
    assert 0 < samples[-1] < 24
    expected = (losses * samples).sum() / samples.sum()
    assert expected != pytest.approx(losses.mean(), rel=1e-4)
    assert result["epoch_losses"][0]["train"] == pytest.approx(expected, rel=1e-6)
    assert any(line.startswith(f"epoch 1/1: training loss {expected:.4f}, ") for line in said)


@pytest.mark.slow
def test_progress_passes_through_the_phases_in_order(options, tmp_path):
    result, _, _ = trained(options(epochs=1), tmp_path)
    text = (tmp_path / "run" / "progress-0.jsonl").read_text()
    written = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    order = list(dict.fromkeys(line["phase"] for line in written))
    assert order == ["init", "data", "features", "first-step", "step", "validate", "checkpoint", "teardown"]
    step = next(line for line in written if line["phase"] == "step")
    assert (step["done"], step["total"]) == (1, result["steps_done"])
    assert step["max_step_s"] > 0


def test_the_same_seed_gives_the_same_model(options, tmp_path):
    first, _, _ = trained(options(), tmp_path / "a")
    again, _, _ = trained(options(loader_workers=2), tmp_path / "b")
    other, _, _ = trained(options(seed=8), tmp_path / "c")
    assert first["model"]["sha256"] == again["model"]["sha256"]
    assert first["first_steps"] == again["first_steps"]
    assert first["rank_weights_sha256"] == again["rank_weights_sha256"]
    assert first["model"]["sha256"] != other["model"]["sha256"]


def test_the_first_steps_are_those_of_the_reference(options, tmp_path):
    result, _, _ = trained(options(), tmp_path)
    found = verify(options(use_mixed_precision=True, workload_hash="w"), {}, {}, 16, Progress(None))
    assert found["steps"] == result["first_steps"]
    assert found["samples"] == result["samples"]
    assert (found["dtype"], found["workload_hash"]) == ("float32", "w")


def test_a_reference_may_ask_for_more_steps_than_an_epoch_has(options):
    found = verify(options(batch_size=64, epochs=3), {}, {}, 16, Progress(None))
    assert 3 <= len(found["steps"]) <= 16


def test_mixed_precision_on_the_cpu_is_bfloat16(options, tmp_path):
    result, _, _ = trained(options(use_mixed_precision=True), tmp_path)
    full = verify(options(), {}, {}, 16, Progress(None))["steps"]
    assert result["dtype"] == "bfloat16"
    assert result["first_steps"] != full
    for mixed, exact in zip(result["first_steps"], full, strict=True):
        assert mixed["loss"] == pytest.approx(exact["loss"], rel=0.05)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_a_reference_is_in_float32_whatever_the_run_is_in(options, dtype):
    mixed = options(use_mixed_precision=True, mixed_precision_dtype=dtype)
    assert verify(mixed, {}, {}, 2, Progress(None))["steps"] == verify(options(), {}, {}, 2, Progress(None))["steps"]


@pytest.mark.slow
def test_features_made_before_give_the_same_training(options, tmp_path, merged, other_merged):
    path = tmp_path / "f.parquet"
    write_features(path, build_features(load_bars(merged), FeatureOptions(rows="bar", lookback=20)))
    with_file, _, _ = trained(options(features=path), tmp_path / "a")
    without, _, _ = trained(options(), tmp_path / "b")
    assert with_file["rank_weights_sha256"] == without["rank_weights_sha256"]
    assert with_file["data"]["sha256"] == without["data"]["sha256"]
    with pytest.raises(UserError, match="made with data-sha256"):
        trained(options(features=path, data=other_merged), tmp_path / "c")
    with pytest.raises(UserError, match="made with rows bar, but this run has rows session"):
        trained(options(features=path, rows="session", target="next_up"), tmp_path / "d")


def test_session_rows(options, tmp_path):
    result, _, _ = trained(options(rows="session", target="next_vpoc_touched"), tmp_path)
    # Of 6 sessions, the last has no label, the one before it validates, and the last of the other 4 is purged.
    assert result["sessions"] == {"total": 26, "used": 6, "train": 3, "inner": 0, "validation": 1}


def test_the_model_says_what_its_features_were(options, tmp_path):
    chosen = options(rows="session", as_of="open", target="next_up", value_area="one_row", rolls="none", epochs=1)
    result, _, _ = trained(chosen, tmp_path)
    # The sixth session has no next open; of 5, the last validates, and the last of the other 4 is purged.
    assert result["sessions"] == {"total": 26, "used": 5, "train": 3, "inner": 0, "validation": 1}
    found = load_model(tmp_path / "out" / "m.pt").feature_options
    assert found == chosen.of_features
    assert (found.rows, found.as_of, found.lookback) == ("session", "open", 20)
    assert (found.value_area, found.rolls) == ("one_row", "none")


def test_a_device_that_computes_other_levels_stops_the_training(options, tmp_path, monkeypatch):
    honest = paths.device_levels

    def wrong(*arguments, **kind):
        for part in honest(*arguments, **kind):
            yield replace(part, vah=part.vah + 1)

    monkeypatch.setattr(paths, "device_levels", wrong)
    with pytest.raises(UserError, match="cpu along the path pooled computes another vah than the CPU") as caught:
        trained(options(vpoc_path="pooled"), tmp_path)
    assert caught.value.exit_code == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_at_once(options, tmp_path, monkeypatch, value):
    honest = VectorTrainer._share_of_loss
    calls = []

    def unhealthy(self, *arguments):
        calls.append(1)
        return honest(self, *arguments) * (value if len(calls) == 5 else 1)

    monkeypatch.setattr(VectorTrainer, "_share_of_loss", unhealthy)
    with pytest.raises(UserError, match=rf"step 5: the loss is {value}; training stopped and no model") as caught:
        trained(options(), tmp_path)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "run" / "result.json").exists()


def refused_and_the_old_model_kept(options, folder, what):
    """Train over an existing model and check that the training fails and keeps that model."""
    old = folder / "out" / "m.pt"
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(b"old")
    with pytest.raises(UserError, match=what) as caught:
        trained(options, folder)
    assert caught.value.exit_code == 4
    assert old.read_bytes() == b"old"
    assert {path.name for path in old.parent.iterdir()} <= {"m.pt", "m_checkpoints"}
    assert not (folder / "run" / "result.json").exists()


@pytest.mark.parametrize("mixed", [False, True])
def test_without_a_scaler_a_gradient_that_is_not_finite_stops_at_once(options, tmp_path, monkeypatch, mixed):
    poison(monkeypatch, [5])
    refused_and_the_old_model_kept(
        options(use_mixed_precision=mixed), tmp_path, "step 5: the norm of the gradient is inf; training stopped"
    )


def poison(monkeypatch, steps, *, scaler=False, by=math.inf):
    """Multiply the gradient of these steps by `by`; with `scaler`, turn the gradient scaler on."""
    fresh = fit.fresh_network

    def poisoned(*what):
        calls = []

        def spoil(gradient):
            calls.append(1)
            return gradient * by if len(calls) in steps else gradient

        model = fresh(*what)
        model[-1].bias.register_hook(spoil)
        return model

    monkeypatch.setattr(fit, "fresh_network", poisoned)
    if scaler:
        # A training in float32 on a CPU would use no scaler, and the loop of one vector.
        monkeypatch.setattr(fit, "suits_vector", lambda _options: False)
        monkeypatch.setattr(
            torch.amp,
            "GradScaler",
            lambda _device, **chosen: grad_scaler("cpu", **{**chosen, "enabled": True}),
            raising=False,
        )


grad_scaler = getattr(torch.amp, "GradScaler", None)
needs_cpu_scaler = pytest.mark.skipif(grad_scaler is None, reason="torch before 2.3 has no scaler for a CPU")


@pytest.mark.slow
@needs_cpu_scaler
def test_a_scaler_skips_what_is_not_finite_and_the_result_counts_it(options, tmp_path, monkeypatch):
    honest, _, _ = trained(options(epochs=3), tmp_path / "honest")
    last = honest["steps_done"]
    poison(monkeypatch, {2, *range(4, 14)}, scaler=True)
    result, _, _ = trained(options(epochs=3), tmp_path / "poisoned")
    assert (result["steps_done"], result["steps_skipped"]) == (last, 11)
    assert result["first_steps"][1]["gradient_norm"] is None
    assert result["first_steps"][0] == honest["first_steps"][0]


@pytest.mark.slow
@needs_cpu_scaler
def test_a_resumed_training_goes_on_with_its_loss_scale_and_its_skipped_steps(options, tmp_path, monkeypatch):
    """With float16 on a GPU the scale decides which gradients are rounded to 0, so it is part of what is resumed."""
    steps = {2, 3}
    poison(monkeypatch, steps, scaler=True)
    whole, _, _ = trained(options(epochs=2), tmp_path / "whole")
    trained(options(epochs=1), tmp_path / "cut")
    steps.clear()
    cut, _, _ = trained(options(epochs=2, resume=True), tmp_path / "cut")
    states = [
        checkpoint.last_checkpoint(tmp_path / name / "out" / "m_checkpoints", print).state["scaler"]
        for name in ("whole", "cut")
    ]
    assert states[0] == states[1]
    assert (states[1]["scale"], states[1]["_growth_tracker"]) == (loop.INITIAL_SCALE / 4, whole["steps_done"] - 3)
    assert (cut["steps_done"], cut["steps_skipped"]) == (whole["steps_done"], 2)
    assert cut["rank_weights_sha256"] == whole["rank_weights_sha256"]


@pytest.mark.slow
@needs_cpu_scaler
def test_skips_in_a_row_are_counted_across_a_stop(options, tmp_path, monkeypatch):
    last = trained(options(epochs=1), tmp_path / "honest")[0]["steps_done"]
    steps = set(range(last - 4, last + 1))
    poison(monkeypatch, steps, scaler=True)
    trained(options(epochs=1), tmp_path)
    steps.clear()
    steps.update(range(1, 8))
    with pytest.raises(UserError, match=rf"step {last + 6}: the gradient was not finite 11 times in a row"):
        trained(options(epochs=2, resume=True), tmp_path)


@needs_cpu_scaler
def test_too_many_skips_in_a_row_stop_the_training(options, tmp_path, monkeypatch):
    poison(monkeypatch, range(4, 15), scaler=True)
    refused_and_the_old_model_kept(
        options(epochs=3), tmp_path, "step 14: the gradient was not finite 11 times in a row"
    )


@pytest.mark.slow
@needs_cpu_scaler
def test_a_gradient_too_large_for_its_norm_is_not_left_to_the_scaler(options, tmp_path, monkeypatch):
    poison(monkeypatch, [5], scaler=True, by=1e30)
    refused_and_the_old_model_kept(options(), tmp_path, "step 5: the norm of the gradient is inf")


@pytest.mark.slow
@needs_cpu_scaler
def test_a_last_step_that_was_skipped_is_counted_and_the_model_is_written(options, tmp_path, monkeypatch):
    last = trained(options(), tmp_path / "honest")[0]["steps_done"]
    poison(monkeypatch, [last], scaler=True)
    result, _, _ = trained(options(), tmp_path / "poisoned")
    assert (result["steps_done"], result["steps_skipped"]) == (last, 1)
    assert (tmp_path / "poisoned" / "out" / "m.pt").exists()


@pytest.mark.slow
def test_the_best_epoch_is_the_model_and_is_what_is_stated(options, tmp_path):
    chosen = options(epochs=4, keep="best", patience=0, learning_rate=0.03, seed=3)
    result, metadata, said = trained(chosen, tmp_path)
    inner = [epoch["inner"] for epoch in result["epoch_losses"]]
    best = inner.index(min(inner)) + 1
    assert (result["kept_epoch"], result["epochs_done"], result["stopped_early"]) == (best, 4, False)
    assert best < 4
    loaded = load_model(tmp_path / "out" / "m.pt")
    assert weights_sha256(loaded.model.state_dict()) == result["kept_weights_sha256"]
    assert result["kept_weights_sha256"] not in result["rank_weights_sha256"]
    assert metadata["metrics"]["validation"]["loss"] == result["epoch_losses"][best - 1]["validation"]
    shorter, _, _ = trained(replace(chosen, epochs=best), tmp_path / "shorter")
    assert shorter["kept_weights_sha256"] == shorter["rank_weights_sha256"][0] == result["kept_weights_sha256"]
    assert f"epoch {best} of 4 is kept" in said[-3]
    assert result["sessions"]["inner"] == 1


@pytest.mark.slow
def test_the_last_epoch_is_kept_where_that_is_asked_for(options, tmp_path):
    result, _, _ = trained(options(epochs=6, keep="last", patience=1, learning_rate=0.3), tmp_path)
    assert result["stopped_early"]
    assert result["kept_epoch"] == result["epochs_done"] < 6
    assert result["kept_weights_sha256"] == result["rank_weights_sha256"][0]
    assert result["throughput"]["samples_per_second"] * result["throughput"]["train_seconds"] == pytest.approx(
        result["epochs_done"] * result["samples"]["train"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "word"), [(1.0, "WORSE: "), (0.003, "better, ")])
def test_a_model_that_is_worse_than_a_constant_rate_is_said_to_be(options, tmp_path, rate, word):
    _, metadata, said = trained(options(learning_rate=rate, epochs=1), tmp_path)
    metrics = metadata["metrics"]
    assert (metrics["validation"]["loss"] >= metrics["constant_rate_loss"]) == (word == "WORSE: ")
    assert word in said[-3]
    assert f"{metrics['constant_rate_loss']:.4f}" in said[-3]


def test_a_validation_loss_that_is_not_finite_writes_nothing(options, tmp_path, monkeypatch):
    honest = loop.Trainer._loss
    monkeypatch.setattr(
        loop.Trainer,
        "_loss",
        lambda self, logits, labels: honest(self, logits, labels) * (1 if self.strategy.model.training else math.nan),
    )
    refused_and_the_old_model_kept(options(), tmp_path, "the validation loss is nan; training stopped and no model")


def test_weights_that_are_not_finite_write_nothing(options, tmp_path, monkeypatch):
    honest = loop.Trainer.evaluate

    def spoil(self, *what):
        found = honest(self, *what)
        with torch.no_grad():
            # The ReLU turns it into 0, so no loss shows it.
            self.strategy.model[0].bias[0] = -math.inf
        return found

    monkeypatch.setattr(loop.Trainer, "evaluate", spoil)
    refused_and_the_old_model_kept(options(epochs=1), tmp_path, "there are weights that are not finite")


def test_metadata_that_cannot_be_made_leave_the_old_model(options, tmp_path, monkeypatch):
    monkeypatch.setattr("vpoc.training.result.constant_rate_loss", lambda *_: math.nan)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.pt").write_bytes(b"old")
    with pytest.raises(ValueError, match="Out of range"):
        trained(options(), tmp_path)
    assert (tmp_path / "out" / "m.pt").read_bytes() == b"old"


def test_the_device_in_the_result_is_the_one_that_holds_the_weights(options):
    trained = SimpleNamespace(parameters=lambda: iter([torch.zeros(1, device="meta"), torch.zeros(1)]))
    assert Single.holding(SimpleNamespace(model=trained)) == [torch.device("meta"), torch.device("cpu")]


def test_no_gpu_is_one_line_and_no_fallback(options, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="sees no GPU") as caught:
        trained(options(device="cuda"), tmp_path)
    assert caught.value.exit_code == 3


def test_constant_rate_loss(samples_of):
    def samples(labels):
        return samples_of(np.zeros((len(labels), 12), np.float32), np.array(labels, np.float32))

    assert constant_rate_loss(samples([1, 0]), samples([1, 0])) == pytest.approx(math.log(2))
    assert math.isfinite(constant_rate_loss(samples([1, 1]), samples([0])))


@pytest.mark.slow
def test_a_resident_training_does_not_import_the_compiler_of_torch(merged, tmp_path):
    """The import would take as long as a small training."""
    words = ["train", "--data", merged, "--lookback", 20, "--loop", "resident", "--epochs", 1, "--output", tmp_path]
    code = (
        "import sys; from vpoc.cli import run; assert run(sys.argv[1:]) == 0; "
        "sys.exit('torch._dynamo' in sys.modules or 'torch._inductor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, *map(str, words)], check=False).returncode == 0
