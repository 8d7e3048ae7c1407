"""Tests that a training with JAX's steps equals one with torch's, and that its result names JAX."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from vpoc.errors import Interrupted, UserError
from vpoc.progress import Progress
from vpoc.training.run import train
from vpoc.training.verify import KeptState, verify
from vpoc.training.with_jax.jax_device import require_plain, start_jax

# Where JAX was started before, a training with torch forks its loader workers in the same process.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

VARIANTS = {
    "as it is": {},
    "clipped, by a schedule": {"clip_norm": 0.01, "schedule": "cosine", "learning_rate": 0.03},
    "the best epoch": {"keep": "best", "weight_decay": 0.5},
    "from disk, by workers": {"chunk_rows": 64, "loader_workers": 1},
    "one layer": {"hidden_layers": (3,)},
}


@pytest.fixture(scope="session")
def _jax():
    pytest.importorskip("jax", reason="JAX is not installed here")


def trained(options, folder):
    """Train and return the result."""
    options = replace(options, run_dir=folder / "run")
    train(options, folder / "out", "m", Progress(options.run_dir), lambda _line: None)
    return json.loads((folder / "run" / "result.json").read_text())


def numbers(result):
    """Return loss and gradient norm of the first steps, and the losses of the epochs."""
    steps = [[step["loss"], step["gradient_norm"]] for step in result["first_steps"]]
    epochs = [[epoch["train"], epoch["validation"]] for epoch in result["epoch_losses"]]
    return np.array(steps), np.array(epochs)


@pytest.mark.usefixtures("_jax")
@pytest.mark.parametrize("chosen", VARIANTS.values(), ids=VARIANTS)
def test_jax_makes_the_steps_that_torch_makes(chosen, options, tmp_path):
    asked = options(**chosen)
    by_torch, by_jax = (
        trained(replace(asked, framework=framework), tmp_path / framework) for framework in ("torch", "jax")
    )
    for one, other in zip(numbers(by_torch), numbers(by_jax), strict=True):
        assert len(one) == len(other)
        np.testing.assert_allclose(other, one, rtol=2e-5)
    assert by_torch["kept_epoch"] == by_jax["kept_epoch"]
    assert (by_torch["framework"], by_torch["jax"]) == ("torch", None)
    assert by_jax["framework"] == "jax"
    assert by_jax["jax"]["jax"]


@pytest.mark.usefixtures("_jax")
def test_torch_computes_what_jax_claims(options, tmp_path):
    asked = options(framework="jax", clip_norm=0.1)
    result = trained(asked, tmp_path)
    state = result["states"][-1]
    (tmp_path / "work").mkdir()
    found = verify(
        replace(asked, run_dir=tmp_path / "work"),
        {"mlp": tmp_path / "out" / result["model"]["file"]},
        {"mlp": KeptState(state["step"], tmp_path / "run" / "states" / state["file"])},
        16,
        Progress(None),
    )
    assert found["validation_loss"] == pytest.approx(result["epoch_losses"][-1]["validation"], rel=1e-5)
    assert found["replay"]["loss"] == pytest.approx(state["loss"], rel=1e-5)
    assert found["replay"]["gradient_norm"] == pytest.approx(state["gradient_norm"], rel=1e-4)
    assert found["model"]["weights_sha256"] == result["kept_weights_sha256"]


@pytest.mark.usefixtures("_jax")
def test_an_interrupted_training_ends_with_the_same_weights(options, tmp_path):
    class Stopping(Progress):
        def step(self, done, *what):
            super().step(done, *what)
            if self.holds_interrupts and done >= 3:
                self.interrupt(15)

    asked = options(framework="jax", epochs=1)
    whole = trained(asked, tmp_path / "whole")
    parted = replace(asked, run_dir=tmp_path / "parted" / "run")
    with pytest.raises(Interrupted):
        train(parted, tmp_path / "parted" / "out", "m", Stopping(parted.run_dir), lambda _line: None)
    resumed = trained(replace(asked, resume=True), tmp_path / "parted")
    # A wish to end takes effect at the following step.
    assert resumed["resumed_at"] == [4]
    assert resumed["rank_weights_sha256"] == whole["rank_weights_sha256"]


@pytest.mark.usefixtures("_jax")
def test_a_training_that_diverges_leaves_no_model(options, tmp_path):
    with pytest.raises(UserError, match="step 2") as refused:
        trained(options(framework="jax", learning_rate=1e30, clip_norm=0.0, weight_decay=1.0), tmp_path)
    assert refused.value.exit_code == 4
    assert not (tmp_path / "out" / "m.pt").exists()


@pytest.mark.usefixtures("_jax")
def test_no_gpu_is_said_with_the_words_of_jax(options):
    with pytest.raises(UserError, match=r"--device cuda: jax \S+ sees no GPU \(") as refused:
        start_jax(options(framework="jax", device="cuda"))
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"model": ("attention",)}, "--model"),
        ({"model": ("mlp", "attention-small")}, "--model"),
        ({"strategy": "ddp"}, "--strategy"),
        ({"loop": "resident"}, "--loop"),
        ({"use_mixed_precision": True}, "--use-mixed-precision"),
        ({"micro_batch_size": 4}, "--micro-batch-size"),
        ({"device": "cuda", "vpoc_path": "naive"}, "--vpoc-path"),
    ],
)
def test_what_jax_does_not_do_is_refused_in_a_line(chosen, named, options):
    with pytest.raises(UserError, match=named) as refused:
        require_plain(options(framework="jax", **chosen))
    assert "\n" not in str(refused.value)
    require_plain(options(framework="jax", vpoc_path="naive"))


def test_a_missing_jax_is_said_in_a_line(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UserError, match="install jax beside torch") as refused:
        start_jax(options(framework="jax"))
    assert refused.value.exit_code == 1
