"""A workload as options of the app: by name, as arguments, and hashed. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from harness.base.files.hashes import json_hash
from harness.matrix.workloads import Workload

# The workload of a training on the user's own data; no matrix file has it.
OWN_DATA = "own-data"
# Prefix of the name of a workload for the user's own program that the command line gives.
OF_APP = "app-"
# The workload that qualifies for promotion.
STANDARD_WORKLOAD = "standard"


# Number of processes of a strategy for several devices if there is no GPU.
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


# Options that apps of the old contract do not know: those make plain Adam steps in all epochs, and keep the last.
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


# The reference leaves out how devices are used: it is always one process on the CPU with the plain loop.
TRAIN_OPTIONS = (*REFERENCE_OPTIONS, "spare", "loop", "sdpa", "strategy", "backend")


# Options given once for each of their values, by these names; other lists are one argument.
REPEATED = {"model": "--model", "accepted": "--accept"}


def options_of(workload: Workload, names: tuple[str, ...] = TRAIN_OPTIONS) -> dict[str, Any]:
    """Return the app's options by name, as plain values, without those left to the app; or those of the program."""
    if workload.program:
        own = workload.program.options
        return {"program": own, "strategy": workload.strategy, "threads": workload.threads}
    values = {name: getattr(workload, name) for name in names}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}


def train_options(workload: Workload, devices: int) -> dict[str, Any]:
    """Return the options of a training on so many devices; their number only matters to a strategy for several."""
    options = options_of(workload)
    return options if workload.strategy == "single" else {**options, "devices": devices}


def device_count(workload: Workload, device: str, gpus: tuple[int, ...]) -> int:
    """Return how many devices a run uses; on CPUs, how many processes, or parts of one (`dp`, `model-parallel`)."""
    if workload.strategy == "single":
        return 1
    # The user's own interpreter may see GPUs that the host's driver does not report.
    return max(1, len(gpus)) if device == "cuda" else CPU_PROCESSES


def arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Return options as command-line arguments."""
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


# How much is trained, on which data, and how often: what a run shows for one amount holds for another.
AMOUNTS = frozenset({"epochs", "data_fraction", "accepted"})


def family_of(options: Mapping[str, Any], max_device_memory: int | None = None, *, smoke_test: bool = False) -> str:
    """Return the identity of the family that failures are counted over: all options but epochs, sessions and data.

    A limit of memory makes another family, because the run must meet it. So does a smoke test, which shows less than
    the run that it is a part of.
    """
    kept = {name: value for name, value in options.items() if name not in AMOUNTS}
    limit = {"max_device_memory": max_device_memory} if max_device_memory else {}
    return json_hash({"options": kept, **limit, **({"smoke_test": True} if smoke_test else {})})


@lru_cache(maxsize=4096)
def family(workload: Workload, devices: int) -> str:
    """Return the family of a workload on this many devices."""
    options = train_options(workload, devices)
    return family_of(options, workload.max_device_memory, smoke_test=workload.smoke_test)


def workload_hash(workload: Workload, data_sha256: str, *, resumed: bool = False) -> str:
    """Return the identity of a workload and its data, with any limit of memory that it must meet.

    Name, description and time limit do not matter. `resumed`: a part of the workload ran before, which shows less than
    running all of it at once.
    """
    limit = {"max_device_memory": workload.max_device_memory} if workload.max_device_memory else {}
    part = {"resumed": True} if resumed else {}
    return json_hash({"options": options_of(workload), "data": data_sha256, **limit, **part})
