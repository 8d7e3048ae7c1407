"""Measure how far first training steps are from the float32 reference; writes docs/evidence/numbers.md.

The tolerances of `wrong-result` (harness/evidence/outcome/tolerances.py) must leave room for these differences, because
no number here is wrong.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.paths import CHECKOUT
from harness.evidence.outcome.tolerances import COMPARED_STEPS, NORM_FACTOR, TOLERANCE, tolerance_of
from harness.matrix.strategies import ModelKind

PAGE = CHECKOUT / "docs" / "evidence" / "numbers.md"
PYTHON = CHECKOUT / ".cache" / "envs" / "cpu-test" / "bin" / "python"
SHOWN = (1, 2, 3, 4, 5, 8, 16)
HALF = "--use-mixed-precision"
# The cases: a name, the model, and options that change only the rounding of numbers.
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
"""Pairs of batch size and seed; the attention models, which take minutes, skip the last."""


def vpoc(*words: str) -> None:
    """Run a command of the app in the environment of its tests."""
    subprocess.run([PYTHON, "-m", "vpoc", *words], check=True, stdout=subprocess.DEVNULL, cwd=CHECKOUT / "app")


@dataclass(frozen=True)
class Differences:
    """Relative differences of loss and gradient norm from the reference: by step, and of a replayed step."""

    losses: list[float]
    norms: list[float]
    replayed_loss: float
    replayed_norm: float


def apart(one: dict[str, Any], other: dict[str, Any], key: str) -> float:
    """Return the difference of two numbers, relative to the smaller; 0 if a loss scaler skipped the step."""
    return abs(one[key] - other[key]) / min(abs(one[key]), abs(other[key])) if one[key] is not None else 0.0


def differences(folder: Path, data: Path, case: tuple[str, ModelKind, tuple[str, ...]]) -> Iterator[Differences]:
    """Yield the differences of a training from the reference, for each batch size and seed, and of a replayed step."""
    _, model, options = case
    for batch, seed in RUNS if model == "mlp" else RUNS[:-1]:
        common = ("--data", data, "--lookback", "20", "--model", model, "--batch-size", batch, "--seed", seed)
        shared = [*map(str, common), "--learning-rate", "0.001", "--loader-workers", "0", "--epochs", "1"]
        # The same options as the workloads have.
        shared += ["--keep", "last", "--patience", "0"]
        if batch < 64:
            # Half of the data gives sixteen steps, which are enough.
            shared += ["--data-fraction", "0.5"]
        run = folder / "run"
        vpoc("train", *shared, *options, "--output", str(folder / "model"), "--run-dir", str(run))
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        state = result["states"][-1]
        again = ("--state", model, str(state["step"]), str(run / "states" / state["file"]))
        vpoc("verify", *shared, *again, "--steps", str(COMPARED_STEPS), "--output", str(folder / "verification.json"))
        found = json.loads((folder / "verification.json").read_text(encoding="utf-8"))
        pairs = list(zip(result["first_steps"], found["steps"], strict=True))
        yield Differences(
            losses=[apart(one, other, "loss") for one, other in pairs],
            norms=[apart(one, other, "gradient_norm") for one, other in pairs],
            replayed_loss=apart(state, found["replay"], "loss"),
            replayed_norm=apart(state, found["replay"], "gradient_norm"),
        )


def main() -> None:
    """Measure, and write the page."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    lines = [f"| what | {' | '.join(map(str, SHOWN))} |", f"|{'---|' * (len(SHOWN) + 1)}"]
    again = ["| what | loss | gradient norm |", "|---|---|---|"]
    worst_loss, beyond = 0.0, []
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "synthetic.csv"
        vpoc("synth", "--sessions", "26", "--output", str(data))
        for name, model, options in CASES:
            found = list(differences(Path(place), data, (name, model, options)))
            most = [max(one.norms[step] for one in found) for step in range(COMPARED_STEPS)]
            losses = [max(one.losses[step] for one in found) for step in range(COMPARED_STEPS)]
            replayed = max(one.replayed_loss for one in found), max(one.replayed_norm for one in found)
            worst_loss = max(worst_loss, losses[0])
            dtype = name.split(", ")[1]
            steps = range(1, COMPARED_STEPS + 1)
            if (
                any(
                    max(pair) > tolerance_of(model, dtype, step)
                    for step, pair in zip(steps, zip(most, losses, strict=True), strict=True)
                )
                or replayed[0] > TOLERANCE[dtype]
                or replayed[1] > NORM_FACTOR * TOLERANCE[dtype]
            ):
                beyond.append(name)
            lines.append(f"| {name} | {' | '.join(f'{most[step - 1]:.0e}' for step in SHOWN)} |")
            again.append(f"| {name} | {replayed[0]:.0e} | {replayed[1]:.0e} |")
            print(lines[-1], again[-1], f"losses up to {max(losses):.0e}", flush=True)
    version = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, check=True)
    text = f"""\
# How far numbers are from the reference

Written by `python -m benchmarks.tolerances` on {time.strftime("%Y-%m-%d")}: torch {version.stdout.decode().strip()},
{platform.machine()}, {os.cpu_count()} cores. The table shows, by step, the largest difference of the
gradient norm from the float32 reference, relative to the smaller of both. Batches have 8 samples (seeds 1 and 7), for
the mlp also 64 (seed 7). The data are 26 synthetic sessions; the learning rate is 0.001.

{chr(10).join(lines)}

The loss of the first step differed by {worst_loss:.0e} at most. The next table shows a step near the end of
the epoch, repeated from the weights that were kept before it:

{chr(10).join(again)}

Rows beyond what `matrix run` allows, so that a
sound run would be reported as `wrong-result`: {" and ".join(beyond) or "none"}.

Adam's first updates move every weight by about the learning rate in the direction of its gradient's sign: if
rounding changes the sign of a gradient near zero, the weight differs by a whole step. The attention models amplify
this: if the initial weights change by a thousandth, the rounding error of bfloat16, two float32 trainings differ as
much after a dozen steps of 8 samples. So the first steps of these models are compared closely, and later steps only to
a tolerance that grows with each step: this finds a flipped exponent, but not a small error. The repeated step finds
small errors of later steps.
"""
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
