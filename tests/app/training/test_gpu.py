"""Tests of training on GPUs, compared with the CPU; visibly skipped where torch sees no GPU."""

import json
from dataclasses import replace

import pytest
import torch
from training.test_strategies import as_ranks

from vpoc.progress import Progress
from vpoc.training.run import train
from vpoc.training.verify import verify

pytestmark = pytest.mark.gpu
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
"""The harness's tolerances for the first steps of an mlp."""

KINDS = {
    "plain": {},
    "workers": {"loader_workers": 2},
    "resident": {"loop": "resident"},
    "accumulation": {"micro_batch_size": 3},
    "largest that fits": {"micro_batch_size": "auto"},
    "float16": {"use_mixed_precision": True},
    "float16 accumulation": {"use_mixed_precision": True, "micro_batch_size": 3},
    "bfloat16": {"use_mixed_precision": True, "mixed_precision_dtype": "bfloat16"},
    "math": {"model": ("attention",), "sdpa": "math"},
    "attention": {"model": ("attention",)},
    "recomputed": {"model": ("attention",), "activation_checkpointing": True},
}


def result(options, folder):
    options = replace(options, run_dir=folder / "run")
    train(options, folder / "out", "m", Progress(options.run_dir), lambda _line: None)
    return json.loads((folder / "run" / "result.json").read_text())


def assert_right(found, options):
    expected = verify(options, {}, {}, 16, Progress(None))["steps"]
    steps = 3 if options.model != ("mlp",) else len(expected)
    for step, right in list(zip(found["first_steps"], expected, strict=True))[:steps]:
        assert step["loss"] == pytest.approx(right["loss"], rel=TOLERANCE[found["dtype"]])


@pytest.mark.parametrize("kind", KINDS)
def test_first_steps_are_those_of_the_cpu(options, tmp_path, kind):
    chosen = options(device="cuda", epochs=1, **KINDS[kind])
    found = result(chosen, tmp_path)
    assert found["device"] == "cuda"
    assert found["memory"]["peak_allocated_bytes"] > 0
    assert_right(found, chosen)


@pytest.mark.parametrize("kind", ["plain", "resident", "float16"])
def test_the_same_seed_and_a_resume_give_bitwise_identical_weights(options, tmp_path, kind):
    chosen = options(device="cuda", **KINDS[kind])
    whole = result(chosen, tmp_path / "whole")
    result(replace(chosen, epochs=1), tmp_path / "cut")
    assert result(replace(chosen, resume=True), tmp_path / "cut")["rank_weights_sha256"] == whole["rank_weights_sha256"]


@pytest.mark.parametrize("strategy", ["dp", "ddp", "averaging", "fsdp", "model-parallel"])
def test_two_gpus_train_what_one_trains(options, merged, tmp_path, strategy):
    if torch.cuda.device_count() < 2:
        pytest.skip("torch sees one GPU")
    words = ["--data", merged, "--lookback", 20, "--hidden-layers", "8,4", "--batch-size", 8, "--loader-workers", 0]
    words += ["--target", "prior_vpoc_touched", "--device", "cuda", "--epochs", 1, "--strategy", strategy]
    words += ["--output", tmp_path, "--name", "m", "--run-dir", tmp_path / "run", "--devices", 2]
    as_ranks(1 if strategy in ("dp", "model-parallel") else 2, "train", *words)
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(found["devices"]) == 2
    assert len(set(found["rank_weights_sha256"])) == 1
    assert_right(found, options(epochs=1))
