"""A stand-in for Python with the app: it writes the app's files quickly and trains nothing.

Started like an interpreter: `-c PROBE` reports what is "installed", `-m vpoc COMMAND ...` acts like that command. It
uses the standard library only, and the version of torch if torch is installed. Its output is invented:
`benchmarks/kills.py` and rehearsals with a stub of torch use it, and none of it is evidence.
"""

import hashlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    _installed: Any = import_module("torch.version")
except ImportError:
    TORCH, HIP = "2.13.0+cpu", None
else:
    TORCH, HIP = _installed.__version__, _installed.hip
STEP_SECONDS = 0.03
SLOW_EVERY, SLOW_SECONDS = 4, 0.8
# A file of this name beside the data slows down every run; it contains the seconds of a step.
SLOW = "slow"
# While a file of this name is there, no run begins another step.
HELD = "held"
STEPS, COMPARED_STEPS = 4, 16
# Numbers of the progress lines.
NUMBERS = itertools.count(1)
# A training of this many epochs or more does not end by itself.
ENDLESS = 1000
SAMPLES = {"train": 256, "validation": 64}
WEIGHTS, MODEL = "c" * 64, b"a stand-in, not a model"
LISTS = ("hidden_layers",)
# Options that have several words or are given several times.
REPEATED = ("model", "trained", "state")
TRUTHS = ("use_mixed_precision", "activation_checkpointing")


def named_options(words: list[str]) -> dict[str, Any]:
    """Return the options of a command line by name, in the form of the app's result."""
    options: dict[str, Any] = dict.fromkeys(TRUTHS, False)
    name = None
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            options[name] = True
        elif name in REPEATED:
            before = options[name]
            options[name] = [*(before if isinstance(before, list) else []), word]
        elif name in LISTS:
            options[name] = [int(number) for number in word.split(",")]
        elif name:
            options[name] = number(word)
    return options


def number(word: str) -> float | str:
    """Return a word as a number if it is one, else unchanged."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def write(file: Path, value: Any) -> None:
    """Write JSON atomically, as the app does."""
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"schema": 2, **value}), encoding="utf-8")
    unfinished.replace(file)


def numbers_of(step: int) -> dict[str, float]:
    """Return the loss and the gradient norm of a step, which are the same in training and verification."""
    return {"loss": 0.7 - step / 100, "gradient_norm": 0.5}


def first_steps(epochs: int) -> list[dict[str, float]]:
    """Return the numbers of the first steps, which are the same in training and verification."""
    count = min(COMPARED_STEPS, STEPS * epochs)
    return [{"step": step, **numbers_of(step)} for step in range(1, count + 1)]


def step_state(step: int) -> bytes:
    """Return the content of the state from before a step."""
    return f"the stand-in's state of step {step}".encode()


def keep_states(folder: Path, total: int, epochs: int) -> list[dict[str, Any]]:
    """Write the states at the steps that the nonce selects, and return their descriptions."""
    parts, kept = min(3 * epochs, 30, total), []
    folder.mkdir()
    for part in range(parts):
        start, end = total * part // parts, total * (part + 1) // parts
        word = hashlib.sha256(f"{os.environ.get('VPOC_NONCE')} mlp {part}".encode()).hexdigest()[:16]
        step = start + 1 + int(word, 16) % (end - start)
        file = folder / f"mlp-{step}.pt"
        file.write_bytes(step_state(step))
        kept.append({"file": file.name, "sha256": sha256(file), "step": step, **numbers_of(step)})
    return kept


def sha256(file: Path) -> str:
    """Return the SHA-256 hash of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tell(folder: Path, phase: str, done: int, total: int | None = None, epoch: dict[str, Any] | None = None) -> None:
    """Write a line of progress."""
    memory: dict[str, Any] = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    line: dict[str, Any] = {
        "schema": 2,
        "wall": time.time(),
        "monotonic": time.monotonic(),
        "rank": 0,
        "pid": os.getpid(),
        "nonce": os.environ.get("VPOC_NONCE"),
        "number": next(NUMBERS),
    }
    line |= {"phase": phase, "done": done, "total": total, "max_step_s": None, "loss": None, "gradient_norm": None}
    line |= {"epoch_losses": epoch}
    with (folder / "progress-0.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**line, "memory": memory}) + "\n")


def warned() -> bool:
    """Return whether torch would warn about a variable and Python turn the warning into an error."""
    unknown = os.environ.get("ATEN_CPU_CAPABILITY") == "nonsense"
    return unknown and os.environ.get("PYTHONWARNINGS", "").startswith("error")


def stand_in_train(options: dict[str, Any]) -> None:
    """Write progress, a model file and a result; exit with an error if the preset's variables cause one."""
    if warned():
        sys.exit("UserWarning: ignoring invalid value")
    folder, output = Path(options.pop("run_dir")), Path(options.pop("output"))
    epochs = options["epochs"]
    # An endless training stays in its first epoch.
    per_epoch = STEPS if epochs < ENDLESS else STEPS * ENDLESS
    total, began = per_epoch * epochs, time.perf_counter()
    for phase in ("import", "init", "data", "features"):
        tell(folder, phase, 0)
    seconds = STEP_SECONDS
    some = int(hashlib.sha256(folder.name.encode()).hexdigest(), 16) % SLOW_EVERY == 0
    all_slow, held = (Path(options["data"]).with_name(name) for name in (SLOW, HELD))
    if some or all_slow.exists():
        # Ignore SIGTERM, to be still there when the next harness looks for what the last one left.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        seconds = float(all_slow.read_text()) if all_slow.exists() else SLOW_SECONDS
    # From here on the speed does not change.
    tell(folder, "first-step", 0, total)
    losses: list[dict[str, Any]] = []
    for step in range(1, total + 1):
        while held.exists():
            time.sleep(0.05)
        # Only the steps of the first epoch take time.
        time.sleep(seconds if step <= per_epoch else 0)
        tell(folder, "step", step, total)
        if step % per_epoch == 0:
            losses.append({"epoch": step // per_epoch, "train": 0.6, "validation": 0.6})
            tell(folder, "validate", 0, SAMPLES["validation"])
            tell(folder, "checkpoint", step, total, losses[-1])
            tell(folder, "step", step, total)
    tell(folder, "checkpoint", 0)
    output.mkdir(parents=True)
    model = output / "model.pt"
    model.write_bytes(MODEL)
    data = Path(options.pop("data"))
    threads, took = options["threads"], time.perf_counter() - began
    kinds = ("device", "loader", "copy", "validate", "checkpoint", "bookkeeping")
    result = {
        "app_version": "stand-in",
        "command": "train",
        "contract": 2,
        "nonce": os.environ.get("VPOC_NONCE"),
        "workload_hash": options.pop("workload_hash"),
        "options": options,
        "data": {"path": str(data), "sha256": sha256(data), "rows": 1},
        "python": "3",
        "torch": {"version": TORCH, "hip": HIP, "cuda": None},
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
        "first_steps": first_steps(epochs),
        "states": keep_states(folder / "states", total, epochs),
        "epoch_losses": losses,
        "throughput": {"samples_per_second": SAMPLES["train"] * epochs / took, "train_seconds": took},
        "time": {kind: took if kind == "device" else 0.0 for kind in kinds},
        "rank_weights_sha256": [WEIGHTS],
        "model": {"file": model.name, "sha256": sha256(model), "bytes": len(MODEL), "parameters": 1},
        "metadata_file": "model_metadata.json",
    }
    write(folder / "result.json", result)
    tell(folder, "teardown", 0)


def stand_in_features(options: dict[str, Any]) -> None:
    """Write progress only: the stand-in's training needs no features."""
    for phase in ("import", "data", "features", "checkpoint"):
        tell(Path(options["run_dir"]), phase, 0)


def stand_in_verify(options: dict[str, Any]) -> None:
    """Confirm the training's claims if its model and its states are the ones that the stand-in wrote."""
    folder, data = Path(options["run_dir"]), Path(options["data"])
    _, model = options["trained"]
    _, step, state = options.get("state", (None, "0", os.devnull))
    for phase, done in (("import", 0), ("init", 0), ("data", 0), ("features", 0), ("first-step", 0), ("validate", 1)):
        tell(folder, phase, done)
    found = sha256(Path(model)) == hashlib.sha256(MODEL).hexdigest()
    same = Path(state).read_bytes() == step_state(int(step))
    facts = {"sha256": sha256(Path(model)), "bytes": len(MODEL), "parameters": 1, "weights_sha256": WEIGHTS}
    value: dict[str, Any] = {
        "workload_hash": options["workload_hash"],
        "data_sha256": sha256(data),
        "samples": SAMPLES,
        "seed": options["seed"],
        "dtype": "float32",
        "steps": first_steps(options["epochs"]),
        "torch": TORCH,
        "model": facts if found else None,
        "model_problem": None if found else "not the stand-in's model",
        "validation_loss": 0.6 if found else None,
        "replay": {"step": int(step), "sha256": sha256(Path(state)), **numbers_of(int(step))} if same else None,
        "replay_problem": None if same else "not a state of that step" if int(step) else "there is no state",
    }
    write(Path(options["output"]), value)


def stand_in_main() -> None:
    """Act like the interpreter, or like the app."""
    if sys.argv[1] == "-c":
        told: dict[str, Any] = {"missing": [], "python": "3", "torch": TORCH, "hip": None, "cuda": None, "gpus": 0}
        print(json.dumps({**told, "packages": ["stand-in==1"]}))
        return
    _, _, command, *words = sys.argv[1:]
    if command == "train":
        # Like a real log, the output contains names and paths of this machine.
        print(*sys.argv, socket.gethostname())
    options = named_options(words)
    if command == "train":
        stand_in_train(options)
    elif command == "features":
        stand_in_features(options)
    elif command == "verify":
        stand_in_verify(options)


if __name__ == "__main__":
    stand_in_main()
