"""A workload as the app's options: by name, as arguments, and hashed. Pure."""

from collections.abc import Mapping
from typing import Any

from harness.base.files.storage import json_hash
from harness.matrix.workloads import Workload

# The workload of a training of the user's own; no matrix file has it.
OWN_DATA = "own-data"
# Begins the name of one that the command line gives as a program of the user's own.
OF_APP = "app-"
# The workload that qualifies for promotion.
STANDARD_WORKLOAD = "standard"


# Processes of a strategy of several devices where there is no GPU.
CPU_PROCESSES = 2


FEATURE_OPTIONS = (
    "rows",
    "as_of",
    "lookback",
    "data_fraction",
    "placement",
    "value_area",
    "rth_close",
    "rolls",
    "accepted",
    "chunk_size",
    "vpoc_path",
)


# Those that apps of the old contract do not know: they make plain Adam steps, all epochs, and keep the last.
CHOICE_OPTIONS = ("weight_decay", "clip_norm", "schedule", "keep", "patience")


REFERENCE_OPTIONS = (
    *FEATURE_OPTIONS,
    "target",
    "model",
    "epochs",
    "batch_size",
    "micro_batch_size",
    "learning_rate",
    *CHOICE_OPTIONS,
    "hidden_layers",
    "use_mixed_precision",
    "mixed_precision_dtype",
    "activation_checkpointing",
    "chunk_rows",
    "loader_workers",
    "seed",
    "threads",
)


# How the devices are used: the reference is always one process on the CPU with the plain loop.
TRAIN_OPTIONS = (*REFERENCE_OPTIONS, "spare", "loop", "sdpa", "strategy", "backend")


# Given once for each of their values, by these names; other lists are one argument.
REPEATED = {"model": "--model", "accepted": "--accept"}


def options_of(workload: Workload, names: tuple[str, ...] = TRAIN_OPTIONS) -> dict[str, Any]:
    """The app's options by name, as plain values; those left to the app are absent. Of a program: what decides it."""
    if workload.program:
        own = workload.program.options
        return {"program": own, "strategy": workload.strategy, "threads": workload.threads}
    values = {name: getattr(workload, name) for name in names}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}


def train_options(workload: Workload, devices: int) -> dict[str, Any]:
    """The options of a training on so many devices; how many there are concerns only a strategy of several."""
    options = options_of(workload)
    return options if workload.strategy == "single" else {**options, "devices": devices}


def device_count(workload: Workload, device: str, gpus: tuple[int, ...]) -> int:
    """How many devices a run uses: on CPUs, how many processes (`dp` and `model-parallel`: parts of one)."""
    if workload.strategy == "single":
        return 1
    # An interpreter of the user's may see GPUs that the host's driver does not tell of.
    return max(1, len(gpus)) if device == "cuda" else CPU_PROCESSES


def arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Options as command-line arguments."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [flag] if value else []
        elif name in REPEATED:
            words += [word for one in value for word in (REPEATED[name], one)]
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return tuple(words)


# How much is trained on, of what data, and how often: what a run shows of one amount it shows of another.
AMOUNTS = frozenset({"epochs", "data_fraction", "accepted"})


def family_of(options: Mapping[str, Any], max_device_memory: int | None = None, *, smoke_test: bool = False) -> str:
    """Identity of what failures are counted over: all options but epochs, sessions and data.

    A limit of memory is another question to the same run, and a smoke test shows less than what it is a part of.
    """
    kept = {name: value for name, value in options.items() if name not in AMOUNTS}
    limit = {"max_device_memory": max_device_memory} if max_device_memory else {}
    return json_hash({"options": kept, **limit, **({"smoke_test": True} if smoke_test else {})})


def workload_hash(workload: Workload, data_sha256: str, *, resumed: bool = False) -> str:
    """Identity of what is run, and of what is asked of its memory.

    Name, description and time limit change nothing about it. A limit of memory is another question to the same run.
    `resumed`: a part of it was run before, which shows less than all of it at once.
    """
    limit = {"max_device_memory": workload.max_device_memory} if workload.max_device_memory else {}
    part = {"resumed": True} if resumed else {}
    return json_hash({"options": options_of(workload), "data": data_sha256, **limit, **part})
