"""The weights before a few steps of a training, for a verifier who picks one and computes that step again.

The training is cut into equal parts, three an epoch. The run's nonce, which no other run was given, selects a step in
each part, so that states kept by an earlier run are of other steps.
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
"""Most states of a training; with more epochs there are fewer states per epoch."""
MOST_BYTES = 128 << 20
"""Most bytes of all states of a training together; but three are kept even of the largest model."""
BYTES_OF_A_PARAMETER = 4


def parts_of(steps: int, epochs: int, parameters: int) -> int:
    """Return the number of parts that a training of so many steps is cut into; each has at least one step."""
    by_size = max(PER_EPOCH, MOST_BYTES // (BYTES_OF_A_PARAMETER * max(parameters, 1)))
    return min(PER_EPOCH * epochs, MOST_STATES, by_size, steps)


def drawn_steps(steps: int, parts: int, kind: str, nonce: str | None) -> frozenset[int]:
    """Return one step, counted from 1, of each part of the training of the model `kind` in the run with this nonce."""
    ends = [steps * part // parts for part in range(parts + 1)]
    drawn = (int(sha256(f"{nonce} {kind} {part}".encode())[:16], 16) for part in range(parts))
    return frozenset(ends[part] + 1 + word % (ends[part + 1] - ends[part]) for part, word in enumerate(drawn))


class KeptStates:
    """Writes the weights before `steps` of the model `kind` to files in `folder`; without a folder, `steps` is empty.

    `facts`: the result's facts on each state. With several ranks the first one writes.
    """

    def __init__(self, folder: Path | None, kind: str, steps: frozenset[int], rank: int) -> None:
        self.steps = steps if folder is not None else frozenset[int]()
        self.facts: list[dict[str, Any]] = []
        self._folder, self._kind, self._rank = folder, kind, rank
        self._kept: dict[int, tuple[str, str]] = {}

    def before(self, step: int, weights: Callable[[], dict[str, torch.Tensor]]) -> None:
        """Keep `weights` if `step`, which is made next, was selected; all ranks must call it."""
        if step not in self.steps or self._folder is None:
            return
        found = weights()
        if self._rank:
            return
        buffer = io.BytesIO()
        torch.save({"schema": STATE_SCHEMA, "state_dict": found}, buffer)
        content = buffer.getvalue()
        name = f"{self._kind}-{step:09}.pt"
        # Not durable: a state that is lost with the machine is lost together with its run.
        with open_atomic(self._folder / name, durable=False) as stream:
            stream.write(content)
        self._kept[step] = name, sha256(content)

    def after(self, step: int, loss: float, gradient_norm: float) -> None:
        """Record the loss before `step`, which was just made, and the norm of its gradient."""
        if step in self._kept:
            name, digest = self._kept.pop(step)
            facts = {"file": name, "sha256": digest, "step": step, "loss": loss}
            self.facts.append({**facts, "gradient_norm": finite(gradient_norm)})
