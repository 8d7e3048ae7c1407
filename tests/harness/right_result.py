"""A result.json in which nothing is wrong."""

from typing import Any

DATA, WORKLOAD, WEIGHTS, MODEL, STATE = ("a" * 64, "b" * 64, "c" * 64, "d" * 64, "5" * 64)
# The steps of the mlp at which the nonce of the tests makes the app report its state.
STATE_STEPS = (2, 8, 11, 20, 23, 32)
OPTIONS = {
    "epochs": 2,
    "batch_size": 64,
    "seed": 7,
    "threads": 1,
    "strategy": "single",
    "hidden_layers": [32, 16],
    "use_mixed_precision": False,
}


def right_result() -> dict[str, Any]:
    """Return new plain values of the result of an mlp on a CPU."""
    first = [{"step": n, "loss": 0.7 - n / 100, "gradient_norm": 0.5 + n / 100} for n in range(1, 17)]
    return {
        "schema": 2,
        "app_version": "0.1.0",
        "command": "train",
        "workload_hash": WORKLOAD,
        "options": {**OPTIONS, "device": "cpu"},
        "data": {"path": "merged.csv", "sha256": DATA, "rows": 1000},
        "python": "3.11.2",
        "torch": {"version": "2.13.0+cpu", "hip": None, "cuda": None},
        "numpy": "2.4.6",
        "polars": "2.1.0",
        "device": "cpu",
        "devices": [{"rank": 0, "device": "cpu", "name": "a CPU", "gfx": None, "memory_bytes": 1}],
        "strategy": "single",
        "world_size": 1,
        "threads": 1,
        "dtype": "float32",
        "sessions": {"total": 50, "used": 40, "train": 32, "validation": 8},
        "samples": {"train": 1000, "validation": 200},
        "epochs_requested": 2,
        "epochs_done": 2,
        "steps_per_epoch": 16,
        "steps_done": 32,
        "steps_skipped": 0,
        "first_steps": first,
        "states": [
            {"file": f"mlp-{n}.pt", "sha256": STATE, "step": n, "loss": 0.6 + n / 100, "gradient_norm": 0.5}
            for n in STATE_STEPS
        ],
        "epoch_losses": [{"epoch": n, "train": 0.6, "validation": 0.65} for n in (1, 2)],
        "throughput": {"samples_per_second": 1000.0, "train_seconds": 2.0},
        "rank_weights_sha256": [WEIGHTS],
        "model": {"file": "model.pt", "sha256": MODEL, "bytes": 100, "parameters": 10},
        "metadata_file": "model_metadata.json",
    }
