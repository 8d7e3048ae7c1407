"""How far the first steps of a training are from the float32 reference; writes docs/evidence/numbers.md.

The tolerances of `wrong-result` in harness/evidence/outcome.py have to leave room for these: no number is wrong here.
"""

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.base.paths import CHECKOUT
from harness.evidence.outcome import tolerance_of
from harness.matrix.strategies import ModelKind

PAGE = CHECKOUT / "docs" / "evidence" / "numbers.md"
PYTHON = CHECKOUT / ".cache" / "envs" / "cpu-test" / "bin" / "python"
SHOWN = (1, 2, 3, 4, 5, 8, 16)
HALF = "--use-mixed-precision"
# What is compared: a name, the model, and options that change digits and nothing else.
CASES: Sequence[tuple[str, ModelKind, tuple[str, ...]]] = (
    ("mlp, bfloat16", "mlp", (HALF,)),
    ("mlp, float16", "mlp", (HALF, "--mixed-precision-dtype", "float16")),
    ("attention, bfloat16", "attention", (HALF,)),
    ("attention, float16", "attention", (HALF, "--mixed-precision-dtype", "float16")),
    ("attention-small, bfloat16", "attention-small", (HALF,)),
    ("attention-small, float16", "attention-small", (HALF, "--mixed-precision-dtype", "float16")),
    ("attention, float32, --sdpa math", "attention", ("--sdpa", "math")),
    ("attention, float32, two threads", "attention", ("--threads", "2")),
)
RUNS = ((8, 1), (8, 7), (64, 7))
"""Batch sizes with seeds."""


def vpoc(*words: str) -> None:
    """Run a command of the app in the environment of its tests."""
    subprocess.run([PYTHON, "-m", "vpoc", *words], check=True, stdout=subprocess.DEVNULL, cwd=CHECKOUT / "app")


def steps(file: Path, key: str) -> list[dict[str, Any]]:
    """Return loss and gradient norm of the first steps."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))[key]
    return found


def differences(
    folder: Path, data: Path, case: tuple[str, ModelKind, tuple[str, ...]]
) -> Iterator[tuple[list[float], ...]]:
    """Yield the relative differences of loss and gradient norm by step, of each batch size and seed."""
    _, model, options = case
    for batch, seed in RUNS:
        common = ("--data", data, "--lookback", "20", "--model", model, "--batch-size", batch, "--seed", seed)
        shared = [*map(str, common), "--learning-rate", "0.001", "--loader-workers", "0", "--epochs", "1"]
        if batch < 64:
            # Sixteen steps are enough.
            shared += ["--data-fraction", "0.5"]
        run = folder / "run"
        vpoc("train", *shared, *options, "--output", str(folder / "model"), "--run-dir", str(run))
        vpoc("reference", *shared, "--output", str(folder / "reference.json"))
        pairs = list(
            zip(steps(run / "result.json", "first_steps"), steps(folder / "reference.json", "steps"), strict=True)
        )
        yield tuple(
            [abs(one[key] - other[key]) / abs(other[key]) if one[key] is not None else 0.0 for one, other in pairs]
            for key in ("loss", "gradient_norm")
        )


def main() -> None:
    """Measure, and write the page."""
    lines = [f"| what | {' | '.join(map(str, SHOWN))} |", f"|{'---|' * (len(SHOWN) + 1)}"]
    worst_loss, beyond = 0.0, []
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "synthetic.csv"
        vpoc("synth", "--sessions", "26", "--output", str(data))
        for case in CASES:
            found = list(differences(Path(place), data, case))
            most = [max(norms[step - 1] for _, norms in found) for step in SHOWN]
            worst_loss = max(worst_loss, *(losses[0] for losses, _ in found))
            dtype = case[0].split(", ")[1]
            if any(found > tolerance_of(case[1], dtype, step) for step, found in zip(SHOWN, most, strict=True)):
                beyond.append(case[0])
            lines.append(f"| {case[0]} | {' | '.join(f'{one:.0e}' for one in most)} |")
    version = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, check=True)
    text = f"""\
# How far numbers are from the reference

Written by `python -m benchmarks.tolerances` on {time.strftime("%Y-%m-%d")}: torch {version.stdout.decode().strip()},
{platform.machine()}, {os.cpu_count()} cores. Largest relative difference of the gradient norm from the float32
reference by step, over batches of 8 (seeds 1 and 7) and 64 (seed 7), on 26 synthetic sessions, learning rate 0.001.

{chr(10).join(lines)}

The loss of the first step differed by {worst_loss:.0e} at most. Beyond what `matrix run` allows, so that a sound
run would be reported as `wrong-result`: {" and ".join(beyond) or "none"}.

Adam's first updates move every weight by about the learning rate in the direction of its gradient's sign: where
rounding changes the sign of a gradient near zero, the weight differs by a whole step. The attention
models amplify it. So their first steps are compared closely, and later ones only to a tolerance that grows with each
step: enough to find a flipped exponent, not a small error.
"""
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
