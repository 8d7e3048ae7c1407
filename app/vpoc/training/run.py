"""One training run: prepare, train each model, write its files, and report what was really done."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vpoc.device import describe
from vpoc.errors import UserError
from vpoc.files import json_bytes, require_temporary_folder, sha256, write_atomic, write_json
from vpoc.gpu_memory.out_of_memory import is_out_of_memory
from vpoc.progress import CONTRACT, Progress
from vpoc.ranks.launch import Ranks, ranks_of
from vpoc.training.checkpoint import set_aside
from vpoc.training.fit import Fit, Trained
from vpoc.training.ledger import Ledger
from vpoc.training.model_file.artefact import serialise
from vpoc.training.preparing.prepare import prepare
from vpoc.training.preparing.prepared import Prepared
from vpoc.training.result import common_facts, judgement, metadata, training_facts
from vpoc.training.strategies.distributed import leave
from vpoc.training.train_options import DISTRIBUTED, TrainOptions

ALONE = Ranks(rank=0, world=1, local_rank=0, local_world=1, rendezvous=None)


def train(options: TrainOptions, output: Path, name: str, progress: Progress, say: Callable[[str], None]) -> None:
    """Train and write `<name>.pt`, `<name>_metadata.json`, curves in `output` and, with a run folder, `result.json`.

    Several models are trained one after another; files of all but the last are named `<name>_<model>...`. With several
    ranks, the first one writes and prints.
    """
    require_temporary_folder()
    ranks = ranks_of(os.environ) or ALONE
    speak = say if ranks.rank == 0 else lambda _line: None
    run = prepare(options, ranks, progress)
    device = run.devices[0]
    used = describe(device) if run.jax is None else run.jax.facts()
    jax = "" if run.jax is None else f"jax {run.jax.versions['jax']} beside "
    named = f"{used['name']} ({used['device'].partition(':')[0]})"
    speak(f"device {named}, {jax}torch {torch.__version__}, rows per {options.rows}")
    trainings: list[dict[str, Any]] = []
    last = len(options.model) - 1
    for number, kind in enumerate(options.model):
        files = name if number == last else f"{name}_{kind}"
        trained = train_one(options, run, kind, output / f"{files}_checkpoints", progress, speak)
        progress.phase("checkpoint")
        if ranks.rank == 0:
            trainings.append(write_model(trained, output, files, speak))
    progress.phase("teardown")
    if options.strategy in DISTRIBUTED:
        leave(device)
    if options.run_dir is not None and ranks.rank == 0:
        *earlier, main = trainings
        facts = {
            **common_facts(trained),
            **main,
            "contract": CONTRACT,
            "nonce": progress.nonce,
            "earlier": earlier,
            "memory": run.memory.peaks(),
        }
        write_json(options.run_dir / "result.json", facts)


def train_one(
    options: TrainOptions, run: Prepared, kind: str, checkpoints: Path, progress: Progress, say: Callable[[str], None]
) -> Trained:
    """Train the model `kind`, from its last checkpoint on if requested."""
    done, micro = 0, options.micro_batch_size or options.batch_size
    try:
        fit = Fit(options, run, kind, checkpoints, progress, say)
        say(fit.summary())
        if options.resume:
            fit.resume()
        elif run.ranks.rank == 0 and (kept := set_aside(checkpoints)):
            say(f"checkpoints of an earlier training are kept in {kept}; --resume would have continued from them")
        try:
            return fit.to_the_end()
        finally:
            done, micro = fit.trainer.steps_done, fit.micro
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        # A library may word it differently; without these words nobody could tell that the GPU was full.
        first = first if "out of memory" in first else f"out of memory: {first}"
        raise UserError(
            f"step {done + 1}: {first}; give --micro-batch-size auto, or a smaller number than {micro}, and --resume",
            exit_code=1,
        ) from error


def write_model(trained: Trained, output: Path, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Write the model, its metadata and its curves; return the facts of this training for the result file."""
    fit = trained.fit
    model_file, metadata_file = f"{name}.pt", f"{name}_metadata.json"
    content = serialise(
        trained.weights,
        {
            "model": fit.kind,
            "hidden_layers": list(fit.options.hidden_layers),
            "scaling": fit.scaling.as_json(),
            "target": fit.options.target,
            "feature_options": asdict(fit.options.of_features),
            "bar_seconds": fit.run.features.bar_seconds,
            "market": asdict(fit.run.features.market),
        },
    )
    model = {
        "file": model_file,
        "sha256": sha256(content),
        "bytes": len(content),
        "parameters": sum(tensor.numel() for tensor in trained.weights.values()),
    }
    facts = training_facts(trained, model, metadata_file)
    # Everything that can fail in making the metadata must happen while the model of an earlier run still exists.
    described = json_bytes(metadata(trained, model))
    curves = {"csv": fit.curves.csv(), "png": fit.curves.png()}
    write_atomic(output / model_file, content)
    write_atomic(output / metadata_file, described)
    for ending, drawn in curves.items():
        write_atomic(output / f"{name}_curves.{ending}", drawn)
    say(judgement(fit))
    say(Ledger(fit.history.seconds).summary())
    say(f"wrote {output / model_file}")
    return facts
