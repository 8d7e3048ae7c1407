"""The options of a training."""

import re

import click

from vpoc.commands.shared_options import (
    DATA_OPTION,
    FEATURE_OPTIONS,
    FEATURES_FILE_OPTION,
    LARGEST_COUNT,
    MOST_EPOCHS,
    RUN_DIR_OPTION,
    SEED,
    TARGET_OPTION,
    FiniteRange,
    together,
)
from vpoc.training.faults.kinds import InjectedFault
from vpoc.training.schedule import SCHEDULES
from vpoc.training.train_options import MOST_LAYERS

LARGEST_LAYER = 65536


def layer_sizes(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    """Return the layer sizes separated by commas; click's usage error if `value` is anything else."""
    parts = value.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) and 0 < int(part) <= LARGEST_LAYER for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of layer sizes such as 32,16")
    if len(parts) > MOST_LAYERS:
        raise click.BadParameter(f"{len(parts)} layers are more than {MOST_LAYERS}")
    return tuple(int(part) for part in parts)


def micro_batch(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | str | None:
    """Return a number of samples, `auto`, or None; click's usage error if `value` is anything else."""
    if value is None or value == "auto":
        return value
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number of samples nor auto")
    return int(value)


def injected_fault(_ctx: click.Context, _param: click.Parameter, value: str | None) -> InjectedFault | None:
    """Return the fault to inject, or None; click's usage error when `value` is anything else."""
    try:
        return None if value is None else InjectedFault.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


HIDDEN_LAYERS_OPTION = click.option(
    "--hidden-layers",
    callback=layer_sizes,
    metavar="SIZES",
    default="32,16",
    help="Sizes of the hidden layers of mlp.",
)
THREADS_OPTION = click.option(
    "--threads", type=click.IntRange(1, 1024), default=1, help="CPU threads of torch, per process."
)
MODEL_OPTIONS = [
    click.option(
        "--model",
        type=click.Choice(["mlp", "attention", "attention-small"]),
        multiple=True,
        default=["mlp"],
        help="mlp: layers on the row; attention: a transformer over the last 32 rows, 2.9 million parameters; "
        "attention-small: 0.7 million. Given more than once: one after another in the same process.",
    ),
    HIDDEN_LAYERS_OPTION,
    click.option(
        "--sdpa",
        type=click.Choice(["auto", "math", "flash", "efficient"]),
        default="auto",
        help="What computes attention; auto: torch's choice.",
    ),
]
OPTIMISER_OPTIONS = [
    click.option("--learning-rate", type=FiniteRange(0, 1, min_open=True), default=1e-3, help="Step size of AdamW."),
    click.option(
        "--weight-decay", type=FiniteRange(0, 1), default=0.01, help="Weight decay of AdamW, times the learning rate."
    ),
    click.option(
        "--clip-norm",
        type=FiniteRange(0),
        default=1.0,
        help="Largest gradient norm: larger gradients are scaled down to it; 0: no limit.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(SCHEDULES),
        default="constant",
        help="Learning rate from the first step to the last of all epochs: constant, or falling to 0.",
    ),
    click.option(
        "--keep",
        type=click.Choice(["best", "last"]),
        default="best",
        help="best: the epoch with the lowest loss on the inner sessions, the last 20 % of those that train, which "
        "are then left out of training; last: the last epoch.",
    ),
    click.option(
        "--patience",
        type=click.IntRange(0, LARGEST_COUNT),
        default=2,
        help="Stop after this many epochs without a lower loss on the inner sessions; 0: make all epochs. With "
        "--keep last --patience 0 no session is left out of training.",
    ),
]
"""How a network is trained, and which epoch is kept."""
LOOP_OPTIONS = [
    click.option("--epochs", type=click.IntRange(1, MOST_EPOCHS), default=3, help="Passes over the training samples."),
    click.option(
        "--batch-size",
        type=click.IntRange(1, LARGEST_COUNT),
        default=64,
        help="Samples per optimizer step, over all devices.",
    ),
    *OPTIMISER_OPTIONS,
    click.option(
        "--loop",
        type=click.Choice(["plain", "resident"]),
        default="plain",
        help="plain: a loader and a copy per step; resident: all samples are on the device, faster.",
    ),
    click.option("--seed", type=SEED, default=7, help="Seed of the weights and the batch order."),
    THREADS_OPTION,
    click.option(
        "--loader-workers",
        type=click.IntRange(0, 64),
        default=2,
        help="Processes that load batches for the plain loop; 0: none.",
    ),
]
MEMORY_OPTIONS = [
    click.option(
        "--micro-batch-size",
        callback=micro_batch,
        metavar="N|auto",
        help="Samples that a device works on at a time; gradients are added up to --batch-size. auto: the most that "
        "fit into its memory.  [default: all of its share]",
    ),
    click.option(
        "--spare",
        type=FiniteRange(0, 0.9),
        help="Share of a GPU's memory that --micro-batch-size auto leaves free.  [default: 0.25 where a screen is "
        "attached, else 0.1]",
    ),
    click.option(
        "--activation-checkpointing",
        is_flag=True,
        help="Keep no activations for the backward pass; compute them again there. Less memory, more time.",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="Use only algorithms whose result is bitwise the same each time; slower on a GPU, no change on a CPU.",
    ),
    click.option(
        "--use-mixed-precision",
        is_flag=True,
        help="Autocast: float16 with a scaler on a GPU, bfloat16 on a CPU, faster only where that computes in it.",
    ),
    click.option(
        "--mixed-precision-dtype",
        type=click.Choice(["bfloat16", "float16"]),
        help="With --use-mixed-precision: use this type instead of the usual one.",
    ),
    click.option(
        "--chunk-rows",
        type=click.IntRange(1, LARGEST_COUNT),
        help="Train on this many rows at a time, from a file on disk, for data larger than memory.",
    ),
    click.option(
        "--skip-gpu-cleanup",
        is_flag=True,
        help="Never return unused GPU memory: not after the features and each epoch, and not when it is fragmented.",
    ),
]
DEVICE_OPTIONS = [
    click.option(
        "--strategy",
        type=click.Choice(["single", "dp", "ddp", "averaging", "fsdp", "model-parallel"]),
        default="single",
        help="How devices are used: one; DataParallel; DistributedDataParallel; one process each with gradients added "
        "through shared memory; weights sharded; layers spread.",
    ),
    click.option(
        "--devices",
        type=click.IntRange(1, 1024),
        help="GPUs, or processes on a CPU, that a strategy uses.  [default: all GPUs, 2 on a CPU]",
    ),
    click.option(
        "--backend",
        type=click.Choice(["nccl", "gloo", "mpi"]),
        help="How ranks of ddp and fsdp talk; nccl is RCCL on AMD GPUs.  [default: nccl on GPUs, gloo on a CPU]",
    ),
    click.option(
        "--rank-timeout",
        type=FiniteRange(1, 86400),
        default=600.0,
        help="Seconds that a rank waits for the others before it ends with an error; over NCCL or RCCL their watchdog "
        "aborts it then, with exit status 134.",
    ),
]
KEEPING_OPTIONS = [
    click.option(
        "--resume",
        is_flag=True,
        help="Continue from the last intact checkpoint in the output folder; from the beginning when there is none.",
    ),
    click.option(
        "--checkpoint-every",
        type=FiniteRange(0),
        default=60.0,
        help="Seconds between checkpoints; 0: after every step. There is always one after an epoch.",
    ),
    click.option(
        "--inject-fault",
        "injected_fault",
        callback=injected_fault,
        metavar="KIND@STEP[/RANK]",
        help="Inject a fault, to see that it is found; an unknown KIND lists those there are.",
    ),
]
TRAINING_OPTIONS = together(
    [
        DATA_OPTION,
        FEATURES_FILE_OPTION,
        FEATURE_OPTIONS,
        TARGET_OPTION,
        *MODEL_OPTIONS,
        *LOOP_OPTIONS,
        *MEMORY_OPTIONS,
        *DEVICE_OPTIONS,
        *KEEPING_OPTIONS,
        RUN_DIR_OPTION,
        click.option("--workload-hash", help="Repeated in the result."),
    ]
)
