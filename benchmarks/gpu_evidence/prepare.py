"""Prepare the arrays that the rows work on: `python -m benchmarks.gpu_evidence.prepare FILE`, on a CPU.

This needs the app with all its dependencies. The bars are synthetic.
"""

import argparse
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_evidence.arrays import (
    BAR_COLUMNS,
    BATCH,
    LEVELS,
    MODELS,
    SCHEMA,
    SESSION_COLUMNS,
    VALIDATION,
    Arrays,
)
from benchmarks.gpu_evidence.training import fit, options_of, steps_of
from vpoc.data.exchange.sessions import split_sessions
from vpoc.data.load import load_bars
from vpoc.data.synth import synthetic_csv
from vpoc.features.compute import compute_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.profile.session_profiles import session_levels
from vpoc.progress import Progress
from vpoc.training.inputs.samples import labelled
from vpoc.training.inputs.scaling import fit_scaling

PLACEMENTS = ("uniform", "typical", "close")
VALUE_AREAS = ("two_row", "one_row")
LOOKBACK = 20
WINDOW_ROWS = 31
"""The number of rows before the first row that has a full window."""


def prepared(sessions: int, steps: int) -> dict[str, Any]:
    """Return all arrays except the references."""
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "synthetic.csv"
        content = synthetic_csv(sessions, 7)
        csv.write_bytes(content)
        bars = load_bars(csv)
        features = compute_features(csv, FeatureOptions(lookback=LOOKBACK), Progress(None))
    found = split_sessions(bars)
    found = found.take(found.stop > found.start)
    arrays: dict[str, Any] = {f"bars_{name}": getattr(bars, name).astype(np.int32) for name in BAR_COLUMNS}
    arrays |= {f"sessions_{name}": getattr(found, name).astype(np.int32) for name in SESSION_COLUMNS}
    for placement in PLACEMENTS:
        for area in VALUE_AREAS:
            levels = session_levels(bars, found, 64, placement, area)
            arrays[f"levels_{placement}_{area}"] = np.stack([getattr(levels, name) for name in LEVELS])
    samples = labelled(features.frame, "up_30")
    count = min(max(BATCH.values()) * steps + VALIDATION + WINDOW_ROWS, len(samples))
    samples = samples.take(slice(count))
    arrays |= {name: getattr(samples, name) for name in ("ends", "labels", "weights", "dates")}
    rows = samples.inputs[: int(samples.ends[-1]) + 1]
    arrays["inputs"] = fit_scaling(rows, samples.ends).apply(rows)
    return arrays | {"schema": SCHEMA, "steps": steps, "sha256": hashlib.sha256(content).hexdigest()}


def references(path: Path, steps: int) -> dict[str, Any]:
    """Return loss and gradient norm of each step of each model, in float32 on one thread of this CPU."""
    arrays, found = Arrays(path), {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in MODELS:
            training = fit(arrays, kind, Path(folder), steps, options_of(kind, "cpu"))
            found[f"reference_{kind}"] = np.array([[s.loss, s.gradient_norm] for s in steps_of(training)])
    return found


def prepare(path: Path, sessions: int, steps: int) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp.npz")
    arrays = prepared(sessions, steps)
    np.savez_compressed(unfinished, **arrays)
    np.savez_compressed(unfinished, **arrays, **references(unfinished, steps))
    unfinished.replace(path)


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(prog="prepare", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path, help="file to write, some MB")
    parser.add_argument("--sessions", type=int, default=250, help="synthetic sessions (default: 250)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each reference (default: 200)")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare(chosen.file, chosen.sessions, chosen.steps)
    print(f"wrote {chosen.file}: {chosen.file.stat().st_size / 1e6:.1f} MB, torch {torch.__version__}")


if __name__ == "__main__":
    main()
