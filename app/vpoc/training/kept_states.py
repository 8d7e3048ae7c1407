"""The weights before a few steps of a training: whoever judges the training picks one, and computes that step again.

The training is cut into equal parts, three an epoch. The word that only this run was given draws a step in each, so
that what an earlier run kept is of other steps.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vpoc.files import open_atomic, sha256
from vpoc.progress import finite

FOLDER = "states"
STATE_SCHEMA = 2
PER_EPOCH = 3
MOST_STATES = 30
"""Of a training. One of more epochs has fewer an epoch."""
MOST_BYTES = 128 << 20
"""Of all states of a training together; three are kept of the largest model, too."""
BYTES_OF_A_PARAMETER = 4


def parts_of(steps: int, epochs: int, parameters: int) -> int:
    """Return into how many parts a training of so many steps is cut; each holds a step at least."""
    by_size = max(PER_EPOCH, MOST_BYTES // (BYTES_OF_A_PARAMETER * max(parameters, 1)))
    return min(PER_EPOCH * epochs, MOST_STATES, by_size, steps)


def drawn_steps(steps: int, parts: int, kind: str, nonce: str | None) -> frozenset[int]:
    """Return a step, counted from 1, of each part of the training of the model `kind` in the run with this nonce."""
    ends = [steps * part // parts for part in range(parts + 1)]
    drawn = (int(sha256(f"{nonce} {kind} {part}".encode())[:16], 16) for part in range(parts))
    return frozenset(ends[part] + 1 + word % (ends[part + 1] - ends[part]) for part, word in enumerate(drawn))


class KeptStates:
    """Keeps the weights before `steps` of the model `kind` in files in `folder`; `steps` are empty where there is none.

    `facts`: of each state, what the result says of it. Of several ranks the first one writes.
    """

    def __init__(self, folder: Path | None, kind: str, steps: frozenset[int], rank: int) -> None:
        self.steps = steps if folder is not None else frozenset[int]()
        self.facts: list[dict[str, Any]] = []
        self._folder, self._kind, self._rank = folder, kind, rank
        self._kept: dict[int, tuple[str, str]] = {}

    def before(self, step: int, weights: Callable[[], dict[str, torch.Tensor]]) -> None:
        """Keep `weights` if `step`, which is about to be made, was drawn; all ranks must call it."""
        if step not in self.steps or self._folder is None:
            return
        found = weights()
        if self._rank:
            return
        buffer = io.BytesIO()
        torch.save({"schema": STATE_SCHEMA, "state_dict": found}, buffer)
        content = buffer.getvalue()
        name = f"{self._kind}-{step:09}.pt"
        # A state that is lost with the machine is lost with its run.
        with open_atomic(self._folder / name, durable=False) as stream:
            stream.write(content)
        self._kept[step] = name, sha256(content)

    def after(self, step: int, loss: float, gradient_norm: float) -> None:
        """Note the loss before `step`, which was made, and the norm of its gradient."""
        if step in self._kept:
            name, digest = self._kept.pop(step)
            facts = {"file": name, "sha256": digest, "step": step, "loss": loss}
            self.facts.append({**facts, "gradient_norm": finite(gradient_norm)})
