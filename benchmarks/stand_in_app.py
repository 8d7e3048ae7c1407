"""A stand-in for Python with the app, for `benchmarks/kills.py`: the app's files in no time, and no training.

Started as an interpreter: `-c PROBE` tells what is "installed", `-m vpoc COMMAND ...` does as that command would.
Standard library only. What it writes is a test's fiction; nothing of it is evidence.
"""

import hashlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

TORCH = "2.13.0+cpu"
STEP_SECONDS = 0.03
SLOW_EVERY, SLOW_SECONDS = 4, 0.8
# A file of that name beside the data makes every run slow: it holds the seconds of a step.
SLOW = "slow"
STEPS = 4
# From so many epochs on a training does not end by itself.
ENDLESS = 1000
SAMPLES = {"train": 256, "validation": 64}
WEIGHTS, MODEL = "c" * 64, b"a stand-in, not a model"
LISTS = ("hidden_layers", "model")
TRUTHS = ("use_mixed_precision", "activation_checkpointing")


def options_of(words: list[str]) -> dict[str, Any]:
    """Options of a command line by name, as the app's result tells them."""
    options: dict[str, Any] = dict.fromkeys(TRUTHS, False)
    name = None
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            options[name] = True
        elif name == "model":
            options["model"] = [*(options["model"] if isinstance(options["model"], list) else []), word]
        elif name in LISTS:
            options[name] = [int(number) for number in word.split(",")]
        elif name:
            options[name] = number(word)
    return options


def number(word: str) -> float | str:
    """A word as the number it is, or as it is."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def write(file: Path, value: Any) -> None:
    """Write JSON in one piece, as the app does."""
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"schema": 2, **value}), encoding="utf-8")
    unfinished.replace(file)


def first_steps() -> list[dict[str, float]]:
    """Numbers of the first steps: the same in training and reference."""
    return [{"step": n, "loss": 0.7 - n / 100, "gradient_norm": 0.5} for n in range(1, STEPS + 1)]


def sha256(file: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tell(folder: Path, phase: str, done: int) -> None:
    """A line of progress."""
    memory: dict[str, Any] = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    line: dict[str, Any] = {
        "schema": 2,
        "wall": time.time(),
        "monotonic": time.monotonic(),
        "rank": 0,
        "pid": os.getpid(),
    }
    line |= {"phase": phase, "done": done, "total": STEPS, "max_step_s": None, "loss": None, "gradient_norm": None}
    with (folder / "progress-0.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**line, "memory": memory}) + "\n")


def warned() -> bool:
    """Return whether torch would warn of a variable, and Python make an error of that."""
    unknown = os.environ.get("ATEN_CPU_CAPABILITY") == "nonsense"
    return unknown and os.environ.get("PYTHONWARNINGS", "").startswith("error")


def train(options: dict[str, Any]) -> None:
    """Progress, a model file and a result; or an error where the variables of a preset cause one."""
    if warned():
        sys.exit("UserWarning: ignoring invalid value")
    folder, output = Path(options.pop("run_dir")), Path(options.pop("output"))
    for phase in ("import", "first-step"):
        tell(folder, phase, 0)
    seconds = STEP_SECONDS
    some = int(hashlib.sha256(folder.name.encode()).hexdigest(), 16) % SLOW_EVERY == 0
    all_slow = Path(options["data"]).with_name(SLOW)
    if some or all_slow.exists():
        # To be there still when the next harness looks for what the last one left.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        seconds = float(all_slow.read_text()) if all_slow.exists() else SLOW_SECONDS
    for step in range(1, STEPS + 1) if options["epochs"] < ENDLESS else itertools.count(1):
        time.sleep(seconds)
        tell(folder, "step", step)
    output.mkdir(parents=True)
    model = output / "model.pt"
    model.write_bytes(MODEL)
    data = Path(options.pop("data"))
    threads, epochs = options["threads"], options["epochs"]
    result = {
        "app_version": "stand-in",
        "command": "train",
        "workload_hash": options.pop("workload_hash"),
        "options": options,
        "data": {"path": str(data), "sha256": sha256(data), "rows": 1},
        "python": "3",
        "torch": {"version": TORCH, "hip": None, "cuda": None},
        "numpy": "none",
        "polars": "none",
        "device": "cpu",
        "devices": [{"rank": 0, "device": "cpu", "name": "a stand-in", "gfx": None, "memory_bytes": None}],
        "strategy": "single",
        "world_size": 1,
        "threads": threads,
        "dtype": "float32",
        "sessions": {"total": 10, "used": 10, "train": 8, "validation": 2},
        "samples": SAMPLES,
        "epochs_requested": epochs,
        "epochs_done": epochs,
        "steps_per_epoch": STEPS,
        "steps_done": STEPS * epochs,
        "steps_skipped": 0,
        "first_steps": first_steps(),
        "epoch_losses": [{"epoch": n, "train": 0.6, "validation": 0.6} for n in range(1, epochs + 1)],
        "throughput": {"samples_per_second": 1.0, "train_seconds": 1.0},
        "rank_weights_sha256": [WEIGHTS],
        "model": {"file": model.name, "sha256": sha256(model), "bytes": len(MODEL), "parameters": 1},
        "metadata_file": "model_metadata.json",
    }
    write(folder / "result.json", result)
    tell(folder, "teardown", STEPS)


def reference(options: dict[str, Any]) -> None:
    """The numbers that the training has."""
    value: dict[str, Any] = {
        "workload_hash": options["workload_hash"],
        "data_sha256": sha256(Path(options["data"])),
        "samples": SAMPLES,
        "seed": options["seed"],
        "dtype": "float32",
        "steps": first_steps(),
        "torch": TORCH,
    }
    write(Path(options["output"]), value)


def check_model(file: Path) -> None:
    """Print what `vpoc check-model --json` prints."""
    checked: dict[str, Any] = {
        "schema": 2,
        "file": str(file),
        "sha256": sha256(file),
        "bytes": len(MODEL),
        "parameters": 1,
    }
    print(json.dumps({**checked, "weights_sha256": WEIGHTS, "target": "none", "rows": "bar", "features": []}))


def main() -> None:
    """Do as the interpreter, or as the app, would."""
    if sys.argv[1] == "-c":
        told: dict[str, Any] = {"missing": [], "python": "3", "torch": TORCH, "hip": None, "cuda": None, "gpus": 0}
        print(json.dumps({**told, "packages": ["stand-in==1"]}))
        return
    _, _, command, *words = sys.argv[1:]
    if command == "train":
        # Like a log, it holds names and places of this machine.
        print(*sys.argv, socket.gethostname())
    options = options_of(words)
    if command == "train":
        train(options)
    elif command == "reference":
        reference(options)
    elif command == "check-model":
        check_model(Path(words[-1]))


if __name__ == "__main__":
    main()
