"""The first steps of a run, in float32 on the CPU: what other devices are compared with."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from vpoc.progress import Progress
from vpoc.training.loop import Step
from vpoc.training.options import TrainOptions
from vpoc.training.prepare import Prepared, prepare, prepare_device
from vpoc.training.run import step_facts


def reference(options: TrainOptions, steps: int, progress: Progress) -> dict[str, Any]:
    """Loss and gradient norm of the first `steps` steps of `train` with these options, as float32 on the CPU."""
    options = replace(options, device="cpu", vpoc_path="cpu", use_mixed_precision=False)
    run = prepare(options, prepare_device(options, progress), progress)
    progress.phase("first-step", steps)
    made: list[Step] = []
    for step in islice(_steps(run), steps):
        made.append(step)
        progress.step(step.number, step.seconds, step.loss, step.gradient_norm)
    return {
        "schema": 1,
        "workload_hash": options.workload_hash,
        "data_sha256": run.features.data_sha256,
        "samples": {"train": len(run.train), "validation": len(run.validation)},
        "seed": options.seed,
        "dtype": run.trainer.dtype,
        "steps": [step_facts(step) for step in made],
        "torch": torch.__version__,
    }


def _steps(run: Prepared) -> Iterator[Step]:
    for epoch in range(1, run.trainer.options.epochs + 1):
        yield from run.trainer.epoch(run.train, epoch)
