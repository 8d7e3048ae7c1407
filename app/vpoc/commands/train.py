"""`vpoc train` and `vpoc reference`."""

import re
from pathlib import Path
from typing import Any

import click

from vpoc.commands.options import (
    DATA,
    FEATURE_OPTIONS,
    IN_FILE,
    LARGEST_COUNT,
    RUN_DIR,
    SEED,
    FiniteRange,
    feature_options,
    together,
)
from vpoc.errors import UserError
from vpoc.files import remove, require_output, require_writable
from vpoc.progress import Progress

LARGEST_LAYER = 65536


def layer_sizes(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    """Layer sizes separated by commas; click's usage error when `value` is anything else."""
    parts = value.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) and 0 < int(part) <= LARGEST_LAYER for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of layer sizes such as 32,16")
    return tuple(int(part) for part in parts)


TRAINING_OPTIONS = together(
    [
        DATA,
        click.option(
            "--features",
            type=IN_FILE,
            help="Features of the same data and options, made before by `vpoc features`; without it they are "
            "computed first, in this process.",
        ),
        FEATURE_OPTIONS,
        click.option(
            "--target",
            type=click.Choice(["up_30", "prior_vpoc_touched", "next_up", "next_vpoc_touched"]),
            metavar="NAME",
            help="What to predict: up_30 or prior_vpoc_touched for bar rows, next_up or next_vpoc_touched for session "
            "rows.  [default: up_30 / next_vpoc_touched]",
        ),
        click.option(
            "--epochs", type=click.IntRange(1, LARGEST_COUNT), default=3, help="Passes over the training samples."
        ),
        click.option("--batch-size", type=click.IntRange(1, LARGEST_COUNT), default=64, help="Samples per step."),
        click.option("--learning-rate", type=FiniteRange(0, 1, min_open=True), default=1e-3, help="Step size of Adam."),
        click.option(
            "--hidden-layers",
            callback=layer_sizes,
            metavar="SIZES",
            default="32,16",
            help="Sizes of the hidden layers.",
        ),
        click.option(
            "--use-mixed-precision", is_flag=True, help="Autocast: float16 with a scaler on a GPU, bfloat16 on a CPU."
        ),
        click.option("--seed", type=SEED, default=7, help="Seed of the weights and the batch order."),
        click.option("--threads", type=click.IntRange(1, 1024), default=1, help="CPU threads of torch."),
        click.option(
            "--loader-workers", type=click.IntRange(0, 64), default=2, help="Processes that load batches; 0: none."
        ),
        click.option("--strategy", type=click.Choice(["single"]), default="single", help="How devices are used."),
        click.option(
            "--skip-gpu-cleanup",
            is_flag=True,
            help="Do not return unused GPU memory after the features and each epoch.",
        ),
        RUN_DIR,
        click.option("--workload-hash", help="Repeated in the result."),
    ]
)


@click.command()
@TRAINING_OPTIONS
@click.option("--output", type=IN_FILE, required=True, help="Folder for the model and its metadata.")
@click.option("--name", help="Name of the model file, without .pt.  [default: that of the data file]")
def train(output: Path, name: str | None, **chosen: Any) -> None:
    """Train a network on the features of a merged CSV.

    The last 20 % of the sessions validate. Writes NAME.pt and NAME_metadata.json in the output folder.

    \b
    vpoc train --data merged.csv --output TRAINING
    vpoc train --data merged.csv --output TRAINING --device cuda --use-mixed-precision

    Exit status: 2 wrong input, 3 the device is not there, 4 loss or gradient are not finite, 130 or 143 interrupted.
    """  # noqa: D301 - click needs the character itself
    feature_options(chosen)
    name = name or chosen["data"].stem
    if Path(name).name != name:
        raise UserError(f"--name {name}: give a file name without folders; --output is the folder")
    for written in (f"{name}.pt", f"{name}_metadata.json"):
        require_output(output / written, chosen["data"], chosen["features"])
    # A folder that cannot be written is better found now than after hours of training.
    require_writable(output)
    progress = _start(chosen)
    if chosen["run_dir"] is not None:
        remove(chosen["run_dir"] / "result.json")

    from vpoc.training import run, signals  # noqa: PLC0415 - torch is imported only after the first progress line

    with signals.interruptible(progress):
        run.train(_options(chosen), output, name, progress, click.echo)


@click.command()
@TRAINING_OPTIONS
@click.option("--steps", type=click.IntRange(1, LARGEST_COUNT), default=16, help="Steps to make.")
@click.option("--output", type=IN_FILE, required=True, help="JSON file to write.")
def reference(output: Path, steps: int, **chosen: Any) -> None:
    """Write the first losses of a training on the CPU.

    Writes loss and gradient norm of the first steps, in float32. Takes the options of `vpoc train`; --device and
    --use-mixed-precision change nothing here. A run on another device with the same options, data and seed sees the
    same batches, so its numbers can be compared with these.
    """
    feature_options(chosen)
    require_output(output, chosen["data"], chosen["features"])
    progress = _start(chosen)

    from vpoc.files import write_json  # noqa: PLC0415
    from vpoc.training import reference as first_steps  # noqa: PLC0415
    from vpoc.training import signals  # noqa: PLC0415

    with signals.interruptible(progress):
        write_json(output, first_steps.reference(_options(chosen), steps, progress))
    click.echo(f"wrote {output}")


def _start(chosen: dict[str, Any]) -> Progress:
    progress = Progress(chosen["run_dir"])
    progress.phase("import")
    return progress


def _options(chosen: dict[str, Any]) -> Any:
    from vpoc.features.targets import DEFAULT_TARGET, TARGETS  # noqa: PLC0415
    from vpoc.training.options import TrainOptions  # noqa: PLC0415

    rows = chosen["rows"]
    target = chosen["target"] or DEFAULT_TARGET[rows]
    if target not in TARGETS[rows]:
        raise UserError(f"--target {target} is not known for --rows {rows}; choose one of {', '.join(TARGETS[rows])}")
    return TrainOptions(**{**chosen, "target": target})
