"""Tests that each row that a CPU can run differs when a fault is planted in the code that the row judges."""

import os
import subprocess
import sys
import time
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import get_worker_info

from benchmarks.gpu_evidence.checks import environment, harness_run, ranks
from benchmarks.gpu_evidence.finding import Kit
from benchmarks.gpu_evidence.rows import ROWS, row_named
from vpoc.errors import UserError
from vpoc.gpu_memory import monitor
from vpoc.probes.checks import several
from vpoc.probes.site import Site, WrongResultError
from vpoc.profile.device import paths
from vpoc.training import batch_size, checkpoint, fit
from vpoc.training.flat.flat import FlatMlp
from vpoc.training.flat.flat_adam import FlatAdam
from vpoc.training.inputs import feeds
from vpoc.training.loop import Trainer
from vpoc.training.strategies.distributed import Collective

STEPS = 4
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
HERE = Path(__file__).parent


def wrong(owner, name, spoil):
    """Return a function that plants a fault: what `name` of `owner` returns goes through `spoil`."""

    def plant(monkeypatch):
        right = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: spoil(right(*given, **named)))

    return plant


def replaced(owner, name, fault):
    return lambda monkeypatch: monkeypatch.setattr(owner, name, fault)


def on_the_device(name, spoil):
    """Return a function that plants a fault in torch only for calls that name a device; references name none."""

    def plant(monkeypatch):
        right = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *given, **named: (spoil if "device" in named else _same)(right(*given, **named))
        )

    return plant


def _same(value):
    return value


def plus_one(value):
    return value + 1


def slightly_more(value):
    return value * 1.1


def but_the_exact(spoil):
    """Return `spoil` without effect on integers and float64, because the answers are compared with those."""
    return lambda found: found if found.dtype in (torch.float64, torch.int64) else spoil(found)


def wrong_profile(monkeypatch):
    wrong(paths, "chunk_levels", plus_one)(monkeypatch)
    wrong(paths, "_session", lambda found: (found[0] + 1, *found[1:]))(monkeypatch)


def wrong_gradient(monkeypatch):
    wrong(Trainer, "_share_of_loss", slightly_more)(monkeypatch)
    right = FlatMlp._differentiate

    def differentiate(self, *given):
        right(self, *given)
        self.adam.gradient.mul_(1.1)

    monkeypatch.setattr(FlatMlp, "_differentiate", differentiate)


def forgetful_adam(monkeypatch):
    monkeypatch.setattr(Trainer, "load_moments", lambda *_: None)
    monkeypatch.setattr(FlatAdam, "load_state_dict", lambda *_: None)


def other_weights_each_time(monkeypatch):
    seeds, right = count(), fit.fresh_network
    monkeypatch.setattr(
        fit, "fresh_network", lambda kind, inputs, hidden, _seed: right(kind, inputs, hidden, next(seeds))
    )


def rounded_weights(monkeypatch):
    save = torch.save

    def half(document, stream):
        weights = document["state"]["weights"]
        weights = {name: tensor.half().float() for name, tensor in weights.items()}
        save({**document, "state": {**document["state"], "weights": weights}}, stream)

    monkeypatch.setattr(checkpoint.torch, "save", half)


def careless_workers(monkeypatch):
    right = feeds._Items.__getitem__

    def item(self, number):
        number, rows = right(self, number)
        return number, rows + 1 if get_worker_info() else rows

    monkeypatch.setattr(feeds._Items, "__getitem__", item)


def slow_steps(monkeypatch):
    right = FlatMlp.steps

    def steps(self, *given, **named):
        time.sleep(1)
        return right(self, *given, **named)

    monkeypatch.setattr(FlatMlp, "steps", steps)


def means_in_place_of_sums(monkeypatch):
    monkeypatch.setattr(Collective, "loss_factor", 2.0)


def changed_sums(monkeypatch):
    right = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda values, *rest: (right(values, *rest), values.add_(1)))


def faulty_ranks(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path[:1], os.environ.get("PYTHONPATH", "")]))
    right = ranks.run_ranks
    monkeypatch.setattr(
        ranks, "run_ranks", lambda site, _function, *rest: right(site, "faulty_rank:rank_of_two", *rest)
    )


def dying_rank(monkeypatch):
    start = several._start_rank

    def fragile(place, function, rank, *arguments):
        dying = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
        return subprocess.Popen(dying) if rank == "1" else start(place, function, rank, *arguments)

    monkeypatch.setattr(several, "_start_rank", fragile)


def interpreter_that_cannot_train(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncase "$*" in *"vpoc train"*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(harness_run.sys, "executable", str(script))


def compiled_wrongly(monkeypatch):
    def compile_(model, **_named):
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        return model

    monkeypatch.setattr(torch, "compile", compile_)


wrong_attention = wrong(functional, "scaled_dot_product_attention", but_the_exact(slightly_more))
FAULTS = {
    "environment": wrong(environment, "describe", lambda said: {**said, "memory_bytes": said["memory_bytes"] // 2}),
    "probe-allocate": on_the_device("full", plus_one),
    "probe-copy": wrong(torch.Tensor, "clone", plus_one),
    "probe-matmul-fp32": wrong(torch.Tensor, "__matmul__", but_the_exact(plus_one)),
    "probe-matmul-fp16": wrong(torch.Tensor, "__matmul__", but_the_exact(plus_one)),
    "probe-matmul-bf16": wrong(torch.Tensor, "__matmul__", but_the_exact(plus_one)),
    "probe-addmm": wrong(torch, "addmm", but_the_exact(plus_one)),
    "probe-convolution": wrong(functional, "conv2d", but_the_exact(slightly_more)),
    "probe-attention-forward": wrong_attention,
    "probe-attention-backward": wrong_attention,
    "probe-optimizer-step": replaced(torch.optim.Adam, "step", lambda *_: None),
    "probe-fragmented": on_the_device("full", plus_one),
    "probe-all-reduce": dying_rank,
    "probe-compile": compiled_wrongly,
    **{f"profile-{path}": wrong_profile for path in ("naive", "chunked", "preallocated", "pooled", "speed")},
    **{row.name: wrong_gradient for row in ROWS if row.name.startswith("train-")},
    **{row.name: wrong_attention for row in ROWS if row.name.startswith("sdpa-") and "efficient" not in row.name},
    "resume-plain": forgetful_adam,
    "resume-resident": forgetful_adam,
    "resume-float16": forgetful_adam,
    **{row.name: other_weights_each_time for row in ROWS if row.name.startswith("deterministic-")},
    "memory-monitor": replaced(monitor, "rss_bytes", lambda: 1 << 30),
    "micro-batch": replaced(batch_size, "is_out_of_memory", lambda _error: False),
    "one-rank": changed_sums,
    "ddp": means_in_place_of_sums,
    "fsdp": means_in_place_of_sums,
    "two-processes": faulty_ranks,
    "loader-workers": careless_workers,
    "checkpoint": rounded_weights,
    **{f"speed-{batch}": slow_steps for batch in (8, 256, 8192)},
    "matrix-run-quick": interpreter_that_cannot_train,
    "matrix-run-standard": interpreter_that_cannot_train,
}
"""The fault to plant for each row."""
SHORT = ("environment", "profile-chunked", "train-mlp-float32-plain", "resume-plain", "ddp", "checkpoint")
"""Rows that are tested on each change; the other rows are tested before a release."""


def row(name, site, arrays):
    """Run a row in this process and return what it finds."""
    found = row_named(name)
    if found.probe:
        module, _, function = found.probe.function.partition(":")
        return getattr(import_module(module), function)(site, *found.probe.arguments)
    module, _, function = found.function.partition(":")
    return getattr(import_module(module), function)(site, Kit(arrays, STEPS), *found.arguments)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "row"
    folder.mkdir()
    return Site("cpu", folder, time.monotonic() + 200)


@pytest.fixture(autouse=True)
def _as_before():
    yield
    torch.use_deterministic_algorithms(False)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_every_row_that_says_so_has_a_fault():
    assert {one.name for one in ROWS if one.shown_red} == set(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SHORT else [pytest.mark.long]) for n in FAULTS])
def test_a_planted_fault_is_seen(name, site, arrays, monkeypatch, tmp_path):
    if name == "fsdp" and TORCH < (2, 6):
        pytest.skip(f"torch {torch.__version__} has no fully_shard")
    plant = FAULTS[name]
    plant(monkeypatch, tmp_path) if plant is interpreter_that_cannot_train else plant(monkeypatch)
    # The row's process would end with its own finding, or with an error of the code that it calls.
    with pytest.raises((WrongResultError, RuntimeError, UserError)):
        row(name, site, arrays)
