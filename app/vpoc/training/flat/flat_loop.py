"""Trainers with all weights in one vector: for any network on a CPU, and, without autograd, for small networks."""

import math
import time
from collections.abc import Iterator

import torch

from vpoc.arrays import Floats
from vpoc.step_stage import FORWARD, OUTSIDE
from vpoc.training.flat.flat import PICKED_ROWS, FlatMlp, blocks
from vpoc.training.flat.flat_adam import FlatAdam
from vpoc.training.inputs.feeds import Chunk, ResidentFeed
from vpoc.training.loop import FIRST_STEPS, AdamMoments, Requests, Step, Trainer
from vpoc.training.train_options import TrainOptions


def suits(options: TrainOptions, kind: str, micro_batch_size: int) -> bool:
    """Return whether FlatTrainer supports a training: an mlp in float32 on one device, whole batches at a time."""
    special = options.use_mixed_precision or options.activation_checkpointing or options.injected_fault
    whole = micro_batch_size >= options.batch_size
    return options.loop == "resident" and kind == "mlp" and options.strategy == "single" and whole and not special


def suits_vector(options: TrainOptions) -> bool:
    """Return whether VectorTrainer supports a training: in float32 on one CPU, without an injected fault."""
    plain = options.strategy == "single" and options.device == "cpu"
    return plain and not options.use_mixed_precision and not options.injected_fault


class VectorTrainer(Trainer):
    """A Trainer on one device, in float32, with FlatAdam; its weights are bitwise identical to those of torch's AdamW.

    With small batches, updating the parameters one by one takes longer than everything else. On GPUs the plain loop is
    used, because it is the one that represents a stack.
    """

    adam: FlatAdam

    def make_optimizer(self) -> None:
        """Create a FlatAdam for all parameters."""
        self.adam = FlatAdam(
            self.strategy.model.parameters(),
            lambda step: self.rate(step),  # noqa: PLW0108 - it is set later
            self.options.weight_decay,
        )

    def moments(self) -> AdamMoments:
        """See Trainer.moments."""
        kept = self.adam.state_dict()["state"]
        names = [name for name, _ in self.strategy.model.named_parameters()]
        return {
            name: {key: value.to("cpu") for key, value in kept.get(number, {}).items()}
            for number, name in enumerate(names)
        }

    def load_moments(self, moments: AdamMoments) -> None:
        """See Trainer.load_moments."""
        if all(moments.values()):
            self.adam.load_state_dict({"state": dict(enumerate(moments.values()))})
            # Above 2^24 the type of the moments' step holds not every number.
            self.adam.steps = self.steps_done

    def _forget_gradient(self) -> None:
        self.adam.gradient.zero_()

    def _gradient_norm(self) -> float:
        return self.strategy.gradient_norm()

    def _scale_gradient(self, factor: float) -> None:
        self.adam.gradient.mul_(factor)

    def _update(self, _number: int, _gradient_norm: float) -> None:
        self.adam.step()


class FlatTrainer(VectorTrainer):
    """A Trainer that makes its steps with FlatMlp, with the same resulting weights.

    After the first steps it processes blocks of some thousand samples and checks their losses together: when one is not
    finite, the steps after it have already been made.
    """

    def make_optimizer(self) -> None:
        """That of FlatMlp."""
        self.flat = FlatMlp(
            self.strategy.model,
            lambda step: self.rate(step),  # noqa: PLW0108 - it is set later
            self.options.batch_size,
            weight_decay=self.options.weight_decay,
            clip_norm=self.options.clip_norm,
        )
        self.adam = self.flat.adam

    def epoch(self, feed: ResidentFeed, epoch: int, first: int, requests: Requests) -> Iterator[Step]:  # type: ignore[override]
        """See Trainer.epoch, except that a loss which is not finite is noticed some steps late."""
        self.strategy.forward.train()
        size = self.options.batch_size
        for chunk, order, divisors in feed.resident(epoch, first):
            for start, end in self._together(len(divisors)):
                self.keep_state(self.steps_done + 1)
                yield from self._blocks(chunk, order[start * size : end * size], divisors[start:end], requests)

    def _together(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield ranges (start, end) of the next `steps` to make together.

        Steps whose numbers are kept are made alone.
        """
        before = self.steps_done
        alone = set(range(min(max(FIRST_STEPS - before, 0), steps)))
        alone |= {step - before - 1 for step in self.states.steps if before < step <= before + steps}
        start = 0
        for single in sorted(alone):
            yield from [(start, single)] if start < single else []
            yield single, single + 1
            start = single + 1
        yield from [(start, steps)] if start < steps else []

    def _blocks(self, chunk: Chunk, order: torch.Tensor, sums: Floats, requests: Requests) -> Iterator[Step]:
        done = 0
        steps = max(PICKED_ROWS // self.options.batch_size, 1)
        started = time.perf_counter()
        columns = chunk.inputs, chunk.labels, chunk.weights
        for inputs, labels, weights in blocks(columns, order, self.options.batch_size, chunk.ends):
            self.ledger.to("device")
            self.stage.at(self.steps_done + 1, FORWARD)
            part = sums[done : done + steps].tolist()
            losses = self.flat.steps(inputs, labels, weights, part).tolist()
            norm = self.flat.gradient_norm.item()
            for place, loss in enumerate([*losses, norm]):
                if not math.isfinite(loss):
                    what = "the loss" if place < len(losses) else "the norm of the gradient"
                    step = self.steps_done + min(place + 1, len(losses))
                    raise self.diverged(f"{what} is {loss}", step)
            self.steps_done += len(losses)
            done += len(losses)
            self.ledger.to("bookkeeping")
            self.stage.at(self.steps_done, OUTSIDE)
            now = time.perf_counter()
            longest = (now - started) / len(losses)
            yield Step(self.steps_done, losses, part, norm, longest, len(labels), requests())
            started = now
