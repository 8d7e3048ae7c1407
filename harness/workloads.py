"""What a workload is to the app: its arguments, its data and its hash."""

import os
import subprocess
from pathlib import Path
from typing import Any

from harness.contracts import InputFile
from harness.environments import Environment, app_hash
from harness.errors import UserError
from harness.matrix import Workload
from harness.paths import DATA
from harness.storage import file_hash, json_hash

FEATURE_OPTIONS = ("rows", "warm_up", "data_fraction", "chunk_size")
TRAIN_OPTIONS = (
    *FEATURE_OPTIONS,
    "epochs",
    "batch_size",
    "learning_rate",
    "hidden_layers",
    "loader_workers",
    "strategy",
    "seed",
    "threads",
    "use_mixed_precision",
)


def options_of(workload: Workload, names: tuple[str, ...] = TRAIN_OPTIONS) -> dict[str, Any]:
    """The app's options by name, as plain values."""
    return {k: list(v) if isinstance(v := getattr(workload, k), tuple) else v for k in names}


def arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Options as command-line arguments."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return tuple(words)


def workload_hash(workload: Workload, data_sha256: str) -> str:
    """Identity of what is run. Name, description and time limit change nothing about it."""
    return json_hash({"options": options_of(workload), "data": data_sha256})


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


def synthetic_file(workload: Workload, environment: Environment) -> Path:
    """The synthetic bars of a workload, made once for each version of the app.

    Raises:
        UserError: when the app cannot make them.
    """
    made = workload.synthetic
    file = synthetic_place(workload)
    if not file.is_file():
        DATA.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}.tmp")
        options = ["--sessions", str(made.sessions), "--seed", str(made.seed), "--output", str(temporary)]
        command = [str(environment.python), "-m", "vpoc", "synth", *options]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment.variables)
        if run.returncode:
            raise UserError(f"synthetic data could not be made: {_last_line(run.stderr)}")
        temporary.replace(file)
    return file


def check_data(file: Path, workload: Workload, environment: Environment) -> None:
    """Have the app look at the user's data before anything is run, so that its faults are not taken for a cell's.

    Raises:
        UserError: with the app's line when something in it would stop training.
    """
    command = [str(environment.python), "-m", "vpoc", "check", str(file), "--warm-up", str(workload.warm_up)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment.variables)
    if run.returncode:
        raise UserError(f"--data: {_last_line(run.stderr).removeprefix('vpoc: ')}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
