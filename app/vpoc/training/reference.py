"""The first steps of a run, in float32 on the CPU: what other devices are compared with."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from vpoc.progress import Progress
from vpoc.training.fit import Fit, step_facts
from vpoc.training.loop import Step
from vpoc.training.prepare import prepare
from vpoc.training.result import sample_counts
from vpoc.training.run import ALONE
from vpoc.training.train_options import TrainOptions


def reference(options: TrainOptions, steps: int, progress: Progress) -> dict[str, Any]:
    """Loss and gradient norm of the first `steps` steps of `train` with these options, as float32 on the CPU."""
    return described([(fit, first_steps(fit, steps, progress)) for fit in fits_on_cpu(options, progress)])


def fits_on_cpu(options: TrainOptions, progress: Progress) -> Iterator[Fit]:
    """Yield each model asked for, before its first step, to be trained in float32 on the CPU by this process alone."""
    options = replace(
        options,
        device="cpu",
        framework="torch",
        vpoc_path="cpu",
        use_mixed_precision=False,
        mixed_precision_dtype=None,
        sdpa="auto",
        injected_fault=None,
        strategy="single",
        backend=None,
        devices=None,
        loop="plain",
        micro_batch_size=None,
    )
    run = prepare(options, ALONE, progress)
    with tempfile.TemporaryDirectory(dir=options.run_dir) as nowhere:
        for kind in options.model:
            # Of these steps nobody needs the states.
            yield Fit(replace(options, run_dir=None), run, kind, Path(nowhere), progress, lambda _line: None)


def first_steps(fit: Fit, steps: int, progress: Progress) -> dict[str, Any]:
    """Make the first `steps` steps of a model; return what a file of references says of them."""
    progress.phase("first-step", steps)
    made: list[Step] = []
    for step in islice(_steps(fit), steps):
        made.append(step)
        progress.step(step.number, step.seconds, step.loss, step.gradient_norm)
    return {
        "model_kind": fit.kind,
        "samples": sample_counts(fit),
        "steps": [step_facts(step) for step in made],
    }


def described(found: list[tuple[Fit, dict[str, Any]]]) -> dict[str, Any]:
    """Return the content of a file of references: `found` of each model, the main one last."""
    *earlier, (fit, main) = found
    return {
        "schema": 2,
        "workload_hash": fit.options.workload_hash,
        "data_sha256": fit.run.features.data_sha256,
        "seed": fit.options.seed,
        "dtype": "float32",
        "torch": torch.__version__,
        **main,
        "earlier": [facts for _, facts in earlier],
    }


def _steps(fit: Fit) -> Iterator[Step]:
    for epoch in range(1, fit.options.epochs + 1):
        yield from fit.trainer.epoch(fit.feed(), epoch, 0, tuple)
