"""Progress of a plain loop: `told(step, total, loss.item())` after each step."""

import json
import os


def told(step: int, total: int, loss: float) -> None:
    """Tell one step."""
    if file := os.environ.get("MATRIX_PROGRESS"):
        with open(file, "a") as lines:
            lines.write(json.dumps({"step": step, "total": total, "loss": loss}) + "\n")
