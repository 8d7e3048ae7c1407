"""The options of `matrix train` that say what to train: those of `vpoc train` that a workload has."""

from collections.abc import Mapping
from typing import Any, get_args

import click
from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.validation_errors import in_plain_words
from harness.matrix.workload_options import OWN_DATA, REPEATED, TRAIN_OPTIONS
from harness.matrix.workloads import SyntheticData, Workload

# Defaults of `vpoc train`.
EPOCHS = 3
PATIENCE = 2
CHUNK_SIZE = 64
# Time limit in seconds: a training that advances is never ended; one that does not is found by the watchdog.
YEARS = 10 * 365 * 86400

HELP: Mapping[str, str] = {
    "rows": "One row per bar of regular hours, or one per session.  [default: bar]",
    "as_of": "As-of time of a session row.  [default: close]",
    "target": "What to predict.  [default: up_30 for bar rows, next_vpoc_touched for session rows]",
    "lookback": "First sessions, which only feed the features that look back, at least 20.  [default: 60]",
    "data_fraction": "Most recent share of the sessions to use.  [default: 1]",
    "placement": "Where the volume of a bar is put within its price range.  [default: uniform]",
    "value_area": "How the value area grows.  [default: two_row]",
    "rth_close": "New York time at which regular hours end.  [default: 16:00]",
    "rolls": "Where the contract changes.  [default: auto]",
    "accepted": "Accept data that breaks this rule of `vpoc check`; can be given several times.",
    "chunk_size": f"Sessions in memory at a time while profiles are computed.  [default: {CHUNK_SIZE}]",
    "vpoc_path": "Also compute the profiles on the device, along this path.  [default: cpu: do not]",
    "model": "Network; several are trained one after another, the last is the main one.  [default: mlp]",
    "hidden_layers": "Sizes of the hidden layers of mlp, such as 32,16.  [default: 32,16]",
    "epochs": f"Passes over the training samples.  [default: {EPOCHS}]",
    "batch_size": "Samples per optimizer step, over all devices.  [default: 64]",
    "micro_batch_size": "Samples that a device works on at a time, or auto: the most that fit.  [default: its share]",
    "learning_rate": "Step size of AdamW.  [default: 0.001]",
    "weight_decay": "Weight decay of AdamW, times the learning rate.  [default: 0.01]",
    "clip_norm": "Largest gradient norm: larger gradients are scaled down to it; 0: no limit.  [default: 1]",
    "schedule": "Learning rate: constant, or falling to 0 at the last step of all epochs.  [default: constant]",
    "keep": "Epoch to keep: the one with the lowest loss on the inner sessions, or the last.  [default: best]",
    "patience": f"Stop after this many epochs without a lower loss on them; 0: make all.  [default: {PATIENCE}]",
    "use_mixed_precision": "Autocast: float16 with a scaler on a GPU; bfloat16 on a CPU, faster where that has it.",
    "mixed_precision_dtype": "With --use-mixed-precision: use this type instead of the usual one.",
    "activation_checkpointing": "Compute activations again in the backward pass: less memory, more time.",
    "chunk_rows": "Train on this many rows at a time, from a file on disk.",
    "spare": "Share of a GPU's memory that --micro-batch-size auto leaves free.  [default: 0.1; with a screen 0.25]",
    "loop": "plain: a loader and a copy per step; resident: all samples on the device.  [default: plain]",
    "sdpa": "What computes attention.  [default: auto]",
    "loader_workers": "Processes that load batches for the plain loop.  [default: 2]",
    "strategy": "How devices are used.  [default: single]",
    "backend": "How ranks of ddp and fsdp talk.",
    "seed": "Seed of the weights and the batch order.  [default: 7]",
    "threads": "CPU threads of torch, per process.  [default: 1]",
}


ACCUMULATION = "accumulation_steps"
GIVEN = (*TRAIN_OPTIONS, ACCUMULATION)
"""Names of the options that `training_options` adds to a command."""


def training_options(command: Any) -> Any:
    """Add the options to a command; an option that is not given is None or empty."""
    batches = "Batches of --batch-size to add up before a step: another form of --micro-batch-size."
    command = click.option("--accumulation-steps", type=click.IntRange(1), help=batches)(command)
    for name in sorted(TRAIN_OPTIONS, key=list(HELP).index, reverse=True):
        flag = REPEATED.get(name, "--" + name.replace("_", "-"))
        annotation = Workload.model_fields[name].annotation
        words = [word for word in _leaves(annotation) if isinstance(word, str) and word != "auto"]
        if annotation is bool:
            option = click.option(flag, is_flag=True, default=None, help=HELP[name])
        elif words:
            choice = click.Choice([word for word in _leaves(annotation) if isinstance(word, str)])
            option = click.option(flag, type=choice, multiple=name in REPEATED, help=HELP[name])
        else:
            more = {"multiple": True, "metavar": "RULE"} if name in REPEATED else {"metavar": "VALUE"}
            option = click.option(flag, name, **more, help=HELP[name])
        command = option(command)
    # The former name of --lookback.
    return click.option("--warm-up", "lookback", hidden=True)(command)


def own_workload(given: Mapping[str, Any]) -> Workload:
    """Return the workload that the user's options describe; None and () mean the default.

    Raises:
        UserError: naming the option whose value is not valid.
    """
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    if "hidden_layers" in chosen:
        chosen["hidden_layers"] = tuple(chosen["hidden_layers"].split(","))
    if steps := chosen.pop(ACCUMULATION, None):
        chosen |= _accumulating(steps, chosen)
    if str(chosen.get("micro_batch_size", "")).isdecimal():
        chosen["micro_batch_size"] = int(chosen["micro_batch_size"])
    usual = {"epochs": EPOCHS, "keep": "best", "patience": PATIENCE, "chunk_size": CHUNK_SIZE, "time_limit": YEARS}
    about = {"name": OWN_DATA, "description": "a training of the user's own", "synthetic": SyntheticData(sessions=1)}
    try:
        return Workload.model_validate({**usual, **about, **chosen})
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        said = in_plain_words(first)
        if not first["loc"]:
            raise UserError(f"{said}; see `matrix train --help`") from None
        name = str(first["loc"][0])
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"{option} {chosen.get(name)}: {said}; give another {option} (`matrix train --help`)") from None


def _accumulating(steps: int, chosen: Mapping[str, Any]) -> dict[str, int]:
    """Return the batch sizes with which `steps` batches are added up, as `vpoc train` does."""
    size = str(chosen.get("batch_size", Workload.model_fields["batch_size"].default))
    if "micro_batch_size" in chosen:
        raise UserError("--accumulation-steps and --micro-batch-size say the same; give one of them")
    return {"batch_size": steps * int(size), "micro_batch_size": int(size)} if size.isdecimal() else {}


def _leaves(annotation: Any) -> list[Any]:
    """Return the innermost parts of a type; for Literals, their values."""
    parts = get_args(annotation)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation]
