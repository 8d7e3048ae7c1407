"""What a workload is to the app: its arguments, its data and its hash."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.containers import container_of
from harness.contracts import InputFile
from harness.environments import Environment, app_hash
from harness.errors import UserError
from harness.evidence import last_line
from harness.executors import Executor, Job, JobLost
from harness.job_environment import view_of
from harness.matrix import Workload
from harness.paths import DATA
from harness.storage import file_hash, json_hash

# The workload of a training of the user's own; no matrix file has it.
OWN_DATA = "own-data"
POLL_SECONDS = 0.05
STOP_SECONDS = 5.0
# Processes of a strategy of several devices where there is no GPU.
CPU_PROCESSES = 2
FEATURE_OPTIONS = (
    "rows",
    "as_of",
    "warm_up",
    "data_fraction",
    "placement",
    "value_area",
    "rth_close",
    "rolls",
    "chunk_size",
    "vpoc_path",
)
REFERENCE_OPTIONS = (
    *FEATURE_OPTIONS,
    "target",
    "model",
    "epochs",
    "batch_size",
    "micro_batch_size",
    "learning_rate",
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
TRAIN_OPTIONS = (*REFERENCE_OPTIONS, "loop", "sdpa", "strategy", "backend")
# Given once for each of its values; other lists are one argument.
REPEATED = "model"


def options_of(workload: Workload, names: tuple[str, ...] = TRAIN_OPTIONS) -> dict[str, Any]:
    """The app's options by name, as plain values; those left to the app are absent."""
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
        elif name == REPEATED:
            words += [word for one in value for word in (flag, one)]
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return tuple(words)


def workload_hash(workload: Workload, data_sha256: str, *, resumed: bool = False) -> str:
    """Identity of what is run, and of what is asked of its memory.

    Name, description and time limit change nothing about it. A limit of memory is another question to the same run.
    `resumed`: a part of it was run before, which shows less than all of it at once.
    """
    limit = {"max_device_memory": workload.max_device_memory} if workload.max_device_memory else {}
    part = {"resumed": True} if resumed else {}
    return json_hash({"options": options_of(workload), "data": data_sha256, **limit, **part})


def read_data(file: Path) -> InputFile:
    """Path and hash of a data file.

    Raises:
        UserError: when it cannot be read.
    """
    try:
        return InputFile(path=str(file.resolve()), sha256=file_hash(file))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; give --data an existing merged CSV") from None


def synthetic_place(workload: Workload) -> Path:
    """Where the synthetic bars of a workload are, or would be."""
    made = workload.synthetic
    return DATA / f"synthetic-{made.sessions}-{made.seed}-{app_hash()[:12]}.csv"


def synthetic_file(workload: Workload, environment: Environment, executor: Executor) -> Path:
    """The synthetic bars of a workload, made once for each version of the app.

    Raises:
        UserError: when the app cannot make them.
    """
    made = workload.synthetic
    file = synthetic_place(workload)
    if not file.is_file():
        DATA.mkdir(parents=True, exist_ok=True)
        options = ("--sessions", str(made.sessions), "--seed", str(made.seed), "--output", file.name)
        with tempfile.TemporaryDirectory(prefix=".synth-", suffix=".tmp", dir=DATA) as place:
            ok, said = _app(Path(place), environment, executor, ("synth", *options))
            if not ok:
                raise UserError(f"synthetic data could not be made: {said}")
            (Path(place) / file.name).replace(file)
    return file


def check_data(file: Path, workload: Workload, environment: Environment, executor: Executor) -> None:
    """Have the app look at the user's data before anything is run, so that its faults are not taken for a cell's.

    Raises:
        UserError: with the app's line when something in it would stop training.
    """
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".check-", suffix=".tmp", dir=DATA) as place:
        seen = view_of(Path(place), file.absolute(), contained=environment.image is not None).data
        words = ("check", str(seen), "--merged", "--rows", workload.rows, "--warm-up", str(workload.warm_up))
        ok, said = _app(Path(place), environment, executor, words, file)
    if not ok:
        raise UserError(f"--data: {said.removeprefix('vpoc: ').replace(str(seen), str(file))}")


def _app(
    folder: Path, environment: Environment, executor: Executor, words: tuple[str, ...], *data: Path
) -> tuple[bool, str]:
    """Run a command of the app in a folder that it may write to; whether it succeeded, and its last line.

    Raises:
        UserError: when it cannot be started.
    """
    container = container_of(environment.image, folder, data, 0) if environment.image else None
    variables = {"PATH": os.defpath, "HOME": ".", **environment.variables}
    job = Job(environment.app(*words), variables, folder, folder / "said.txt", container)
    try:
        handle = executor.start(job)
        try:
            while (exit_ := handle.poll()) is None:
                time.sleep(POLL_SECONDS)
        except BaseException:
            handle.stop(STOP_SECONDS)
            raise
    except (OSError, JobLost) as error:
        raise UserError(f"vpoc {words[0]} could not be run: {error}") from None
    return exit_.ok, last_line(job.log)
