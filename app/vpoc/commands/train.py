"""`vpoc train` and `vpoc verify`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from vpoc.commands.shared_options import IN_FILE, LARGEST_COUNT, feature_options
from vpoc.commands.training_options import TRAINING_OPTIONS
from vpoc.errors import UserError, printable
from vpoc.files import remove, require_output, require_writable, write_json
from vpoc.importing import importing
from vpoc.progress import Progress
from vpoc.ranks.launch import launch, ranks_of
from vpoc.training.train_options import CPU_DEVICES, RANKED, TrainOptions

WRITTEN = (".pt", "_metadata.json", "_curves.csv", "_curves.png")


@click.command("train")
@TRAINING_OPTIONS
@click.option("--output", type=IN_FILE, default=Path("TRAINING"), help="Folder for the model and its metadata.")
@click.option(
    "--framework",
    type=click.Choice(["torch", "jax"]),
    default="torch",
    help="jax: JAX computes the steps of an mlp in float32 on one device; torch, on the CPU, does all else.",
)
@click.option("--name", help="Name of the model file, without .pt.  [default: that of the data file]")
@click.option(
    "--accumulation-steps",
    type=click.IntRange(1, LARGEST_COUNT),
    help="Add up the gradients of this many batches of --batch-size before a step: the same as --batch-size times this "
    "with --micro-batch-size of the one given.",
)
def train_command(output: Path, name: str | None, accumulation_steps: int | None, **chosen: Any) -> None:
    """Train a network on the features of a merged CSV.

    The last 20 % of the sessions validate. Writes NAME.pt, NAME_metadata.json, NAME_curves.csv and .png in the output
    folder, and checkpoints in NAME_checkpoints, from which --resume continues.

    \b
    vpoc train --data merged.csv --output TRAINING
    vpoc train --data merged.csv --output TRAINING --device cuda --use-mixed-precision
    vpoc train --data merged.csv --output TRAINING --device cuda --strategy ddp
    vpoc train --data merged.csv --output TRAINING --resume

    Exit status: 2 wrong input, 3 the device is not there, 4 loss or gradient are not finite, 5 ranks have different
    weights, 130 or 143 interrupted.
    """  # noqa: D301 - click needs the character itself
    feature_options(chosen)
    if accumulation_steps is not None:
        chosen |= _accumulating(accumulation_steps, chosen["batch_size"], chosen["micro_batch_size"])
    name = name or chosen["data"].stem
    if Path(name).name != name:
        raise UserError(f"--name {name}: give a file name without folders; --output is the folder")
    for ending in WRITTEN:
        require_output(output / f"{name}{ending}", chosen["data"], chosen["features"])
    # Check now that the folder is writable, not after hours of training.
    require_writable(output)
    ranks = ranks_of(os.environ)
    if chosen["strategy"] in RANKED and ranks is None:
        sys.exit(_launch(chosen))
    progress = _start(chosen, ranks.rank if ranks else 0)
    if chosen["run_dir"] is not None and (ranks is None or ranks.rank == 0):
        remove(chosen["run_dir"] / "result.json")

    with importing("torch"):
        from vpoc.training import run, signals  # noqa: PLC0415 - torch is imported only after the first progress line

    with progress, signals.interruptible(progress):
        # A checkpoint or a model may be somebody else's.
        run.train(_options(chosen), output, name, progress, lambda line: click.echo(printable(line)))


@click.command("verify")
@TRAINING_OPTIONS
@click.option(
    "--trained",
    type=(str, IN_FILE),
    multiple=True,
    metavar="MODEL FILE",
    help="File of the trained MODEL, such as mlp.",
)
@click.option(
    "--state",
    type=(str, click.IntRange(min=1), IN_FILE),
    multiple=True,
    metavar="MODEL STEP FILE",
    help="Weights of MODEL before optimizer step STEP, as `vpoc train --run-dir` keeps some.",
)
@click.option("--steps", type=click.IntRange(1, LARGEST_COUNT), default=16, help="First steps to make.")
@click.option("--output", type=IN_FILE, required=True, help="JSON file to write.")
def verify_command(output: Path, steps: int, trained: Any, state: Any, **chosen: Any) -> None:
    """Compute parts of a finished training again.

    Writes loss and gradient norm of the first steps and, for each model, the content of its file, its loss on the
    validation samples, and loss and gradient norm of one step from the weights before it: all in float32 on the CPU.
    Takes the options of `vpoc train`. A file that is not a model or not a state is no error, but is reported.
    """
    feature_options(chosen)
    files = [file for *_, file in (*trained, *state)]
    require_output(output, chosen["data"], chosen["features"], *files)
    progress = _start(chosen)

    with importing("torch"):
        from vpoc.training import signals  # noqa: PLC0415
        from vpoc.training import verify as again  # noqa: PLC0415

    states = {kind: again.KeptState(step, file) for kind, step, file in state}
    with progress, signals.interruptible(progress):
        write_json(output, again.verify(_options(chosen), dict(trained), states, steps, progress))
    click.echo(f"wrote {output}")


def _accumulating(steps: int, batch_size: int, micro_batch_size: int | str | None) -> dict[str, int]:
    """Return the batch sizes with which `steps` batches are added up."""
    if micro_batch_size is not None:
        raise UserError("--accumulation-steps and --micro-batch-size say the same; give one of them")
    if steps * batch_size > LARGEST_COUNT:
        raise UserError(f"--accumulation-steps {steps} of --batch-size {batch_size} is too much for one step")
    return {"batch_size": steps * batch_size, "micro_batch_size": batch_size}


def _launch(chosen: dict[str, Any]) -> int:
    """Start this command once per device; return the exit status."""
    if Path(sys.argv[0]).name != "__main__.py":
        # With `-m`, unlike this process, the ranks would import from the working folder, whatever files it holds.
        os.environ["PYTHONSAFEPATH"] = "1"
    count = chosen["devices"]
    if count is None and chosen["device"] == "cuda":
        # In a separate process, so that no rank inherits what torch starts when it looks for GPUs.
        words = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
        count = int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        if not count:
            raise UserError("--device cuda: torch sees no GPU; see `vpoc probe --device cuda`", exit_code=3)
    return launch([sys.executable, "-m", "vpoc", *sys.argv[1:]], count or CPU_DEVICES)


def _start(chosen: dict[str, Any], rank: int = 0) -> Progress:
    progress = Progress(chosen["run_dir"], rank)
    progress.phase("import")
    return progress


def _options(chosen: dict[str, Any]) -> TrainOptions:
    from vpoc.features.targets import target_for  # noqa: PLC0415

    if len(set(chosen["model"])) < len(chosen["model"]):
        raise UserError("--model: the same one is given twice; give each once")
    return TrainOptions(**{**chosen, "target": target_for(chosen["rows"], chosen["target"])})
