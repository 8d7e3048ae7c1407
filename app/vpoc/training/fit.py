"""The training of one model to its end: epochs, checkpoints, validation, and the facts for the result."""

import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vpoc.device import clean_up
from vpoc.errors import Interrupted, UserError
from vpoc.features.table import NAMES
from vpoc.models.by_name import Network, fresh_network, input_shape, parameter_count
from vpoc.progress import Progress, finite
from vpoc.terminal import watched
from vpoc.training import checkpoint
from vpoc.training.batch_size import micro_batch_size
from vpoc.training.checkpoint import History, Position
from vpoc.training.curves import Curves
from vpoc.training.faults.injector import injector_of
from vpoc.training.flat.flat_loop import FlatTrainer, VectorTrainer, suits, suits_vector
from vpoc.training.identity import identity_of, manner_of
from vpoc.training.inputs.batches import Cut, Order
from vpoc.training.inputs.feeds import Feed, LoaderFeed, ResidentFeed
from vpoc.training.keeping import best_epoch, ends_early
from vpoc.training.kept_states import FOLDER, KeptStates, drawn_steps, parts_of
from vpoc.training.ledger import Ledger
from vpoc.training.loop import FIRST_STEPS, Step, Trainer
from vpoc.training.model_file.artefact import weights_sha256
from vpoc.training.preparing.choose_strategy import strategy_of
from vpoc.training.preparing.prepared import Prepared
from vpoc.training.resumable import require_resumable
from vpoc.training.schedule import rate_of
from vpoc.training.train_options import TrainOptions

SAMPLE_MEMORY_EVERY_S = 1.0
VALIDATION_BATCH = 1024
"""Smallest validation batch of an mlp: its rows are so small that smaller batches would only take longer."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A model trained to the end, and the devices it was on.

    `weights`: those of the kept epoch, on the CPU.
    `rank_weights_sha256`: the hash of the final weights of each rank.
    """

    fit: "Fit"
    weights: dict[str, torch.Tensor]
    rank_weights_sha256: list[str]
    devices: list[dict[str, Any]]


class Fit:
    """Trains one model.

    Checkpoints contain `position`, `history`, `curves`, `ledger`, the state of `trainer`, and the weights `kept` of the
    best epoch so far (None if the last epoch is kept). One of many trainings (`one_of_many`) writes no checkpoints and
    does not show its steps. Without validation samples nothing is validated.
    """

    def __init__(
        self,
        options: TrainOptions,
        run: Prepared,
        kind: str,
        folder: Path,
        progress: Progress,
        say: Say,
        *,
        one_of_many: bool = False,
    ) -> None:
        self.one_of_many = one_of_many
        self.options, self.run, self.kind, self.folder = options, run, kind, folder
        self.progress, self.say = progress, say
        samples = run.samples_in(folder.parent, options, kind, progress)
        self.train, self.inner, self.validation = samples.train, samples.inner, samples.validation
        self.scaling = samples.scaling
        self.kept: dict[str, torch.Tensor] | None = None
        # Set it only if necessary: that imports torch's compiler, which takes longer than a small training.
        if options.deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(options.deterministic)
        self.ledger = Ledger()
        self.curves = Curves()
        model = fresh_network(kind, len(NAMES), options.hidden_layers, options.seed)
        parameters = parameter_count(model)
        self.trainer = self._trainer(model)
        self.injector = injector_of(options.injected_fault, self.rank)
        self.injector.arm(self.trainer)
        self.order = Order(len(self.train), options.batch_size, options.seed, options.chunk_rows)
        self._fault = str(options.injected_fault) if options.injected_fault else None
        self.position, self.history = Position(), History(injected_fault=self._fault)
        last = self.order.steps * options.epochs
        self.trainer.rate = rate_of(options.schedule, options.learning_rate, last)
        drawn = drawn_steps(last, parts_of(last, options.epochs, parameters), kind, progress.nonce)
        states = options.run_dir and options.run_dir / FOLDER
        self.states = self.trainer.states = KeptStates(states, kind, drawn, self.rank)
        if options.injected_fault and options.injected_fault.step > last:
            raise UserError(f"--inject-fault {self._fault}: there are only {last} steps")
        self.saved, self.saved_steps = time.monotonic(), 0
        self.sampled = -math.inf
        self.warned = False

    def _trainer(self, model: Network) -> Trainer:
        """Return the trainer that makes the steps, and set its micro-batch size."""
        options, run = self.options, self.run
        if run.jax is not None:
            from vpoc.training.with_jax.jax_loop import JaxTrainer, OnJax  # noqa: PLC0415 - only then it is there

            self.micro = options.batch_size
            return JaxTrainer(OnJax(model, run.jax), options, self.ledger, self.progress.stage)
        strategy = strategy_of(options, model, run.devices, run.ranks, input_shape(self.kind, len(NAMES)))
        self.micro = micro_batch_size(options, strategy, self.kind)
        trainer = VectorTrainer if suits_vector(options) else Trainer
        if suits(options, self.kind, self.micro):
            trainer = FlatTrainer
        return trainer(strategy, options, self.ledger, self.progress.stage)

    @property
    def rank(self) -> int:
        """The number of this process among those that train."""
        return self.run.ranks.rank

    def summary(self) -> str:
        """Return a sentence on the model and its samples."""
        before = f", each with the {self.train.window - 1} rows before it" if self.train.window > 1 else ""
        choosing = ""
        if self.inner is not None:
            choosing = f"{len(self.inner)} inner ones of {self.inner.sessions}, which choose the epoch, "
        elif self.options.chooses:
            choosing = "too few sessions to choose an epoch by, so that the last is kept, "
        return (
            f"{self.kind}: {self.run.features.summary()}: {len(self.train)} training samples of {self.train.sessions} "
            f"sessions, {choosing}{len(self.validation)} validation samples of {self.validation.sessions} "
            f"sessions{before}"
        )

    @property
    def inner_losses(self) -> list[float]:
        """The inner losses of the epochs so far; empty if no samples choose the epoch."""
        return [epoch["inner"] for epoch in self.history.epoch_losses if epoch["inner"] is not None]

    @property
    def kept_epoch(self) -> int:
        """The epoch, among those so far, whose weights become the model."""
        losses = self.inner_losses
        return best_epoch(losses) if losses and self.options.keep == "best" else len(self.history.epoch_losses)

    @property
    def stopped_early(self) -> bool:
        """Return whether the training ended before all its epochs."""
        return len(self.history.epoch_losses) < self.options.epochs

    def feed(self) -> Feed:
        """Return the feed that brings batches to the device."""
        cut = Cut(self.micro, self.rank, self.run.ranks.world)
        device = self.run.devices[0]
        if self.options.loop == "resident":
            return ResidentFeed(self.train, self.order, cut, device, self.ledger)
        workers = self.options.loader_workers
        return LoaderFeed(self.train, self.order, cut, device, workers, self.ledger, self.injector)

    def to_the_end(self) -> Trained:
        """Train the remaining epochs; UserError when numbers are not finite, Interrupted after a checkpoint."""
        self.ledger = self.trainer.ledger = Ledger(self.history.seconds)
        feed = self.feed()
        for epoch in range(self.position.epoch, self.options.epochs + 1):
            if not self.position.batch and ends_early(self.inner_losses, self.options.patience):
                break
            self._train(feed, epoch)
            self._validate(epoch)
            self.position = Position(epoch + 1)
            self.save(self.history.epoch_losses[-1])
        self.trainer.require_finite()
        weights = self.trainer.strategy.weights()
        self.history.seconds = self.ledger.seconds()
        strategy = self.trainer.strategy
        rank_weights = strategy.gathered(weights_sha256(weights))
        mine = json.dumps(strategy.described())
        devices = [device for found in strategy.gathered(mine) for device in json.loads(found)]
        strategy.close()
        return Trained(self, weights if self.kept is None else self.kept, rank_weights, devices)

    def _train(self, feed: Feed, epoch: int) -> None:
        """Train the rest of an epoch."""
        total = self.order.steps * self.options.epochs
        self.progress.phase("step" if self.trainer.steps_done else "first-step", total, self.trainer.steps_done)
        steps = self.trainer.epoch(feed, epoch, self.position.batch, self._requests)
        steps = self.injector.steps(steps, self.trainer, self.progress, self.folder.parent)
        # Until a checkpoint is written, only note a request to stop.
        self.progress.holds_interrupts = True
        try:
            shown = (
                watched(steps, f"epoch {epoch}", self.order.steps - self.position.batch)
                if not self.one_of_many
                else steps
            )
            for step in shown:
                self._note(step, epoch, total)
            if self.progress.interrupted_by is not None and self.run.ranks.world == 1:
                # The request came after the last step; several ranks would first have to agree.
                self.save()
        finally:
            self.progress.holds_interrupts = False
        history = self.history
        history.epoch_losses.append(
            {"epoch": epoch, "train": history.loss / history.weight, "validation": None, "inner": None}
        )
        history.loss = history.weight = 0.0

    def _requests(self) -> tuple[float, ...]:
        """Return whether this rank was asked to end and, on the first rank, whether a checkpoint is due."""
        due = self.rank == 0 and time.monotonic() - self.saved >= self.options.checkpoint_every
        return float(self.progress.interrupted_by is not None), float(due)

    def _note(self, step: Step, epoch: int, total: int) -> None:
        """Record a step in progress, history and curves, and act on requests."""
        self.progress.step(step.number, step.seconds, step.loss, step.gradient_norm)
        if step.number == 1:
            self.progress.phase("step", total, 1)
        if step.number <= FIRST_STEPS:
            self.history.first_steps.append(step_facts(step))
        self.states.after(step.number, step.loss, step.gradient_norm)
        history = self.history
        for loss, weight in zip(step.losses, step.divisors, strict=True):
            history.loss += loss * weight
            history.weight += weight
        self.curves.add_losses(step.number - len(step.losses) + 1, step.losses)
        self.position = Position(epoch, self.position.batch + len(step.losses))
        now = time.monotonic()
        if now - self.sampled >= SAMPLE_MEMORY_EVERY_S:
            self._look_at_memory(now)
        interrupted, due = step.requests
        if interrupted or due:
            self.save()
        if interrupted:
            raise Interrupted(self.progress.interrupted_by or signal.SIGTERM)

    def _look_at_memory(self, now: float) -> None:
        self.sampled = now
        memory = self.run.memory
        sample = memory.sample()
        self.curves.add_memory(self.trainer.steps_done, sample)
        # Only the first warning names the owners, because finding them visits all processes.
        line = None if self.warned else memory.disconnect(sample)
        if line:
            self.warned = True
            self.say(line)
        memory.release()

    def _validate(self, epoch: int) -> None:
        self.ledger.to("validate")
        size = max(self.micro, VALIDATION_BATCH) if self.kind == "mlp" else self.micro
        inner = 0 if self.inner is None else len(self.inner)
        self.progress.phase("validate", inner + len(self.validation))
        last = self.history.epoch_losses[-1]
        if self.inner is not None:
            loss = self.trainer.evaluate(self.inner, size, self.progress).loss
            # The first rank decides for all, because another kind of device may round differently.
            last["inner"] = float(self.trainer.strategy.gathered(repr(loss))[0])
            if self.kept_epoch == epoch:
                self.kept = self.trainer.strategy.weights()
        if not len(self.validation):
            return
        found = self.trainer.evaluate(self.validation, size, self.progress, inner)
        clean_up(self.run.devices[0], skip=self.options.skip_gpu_cleanup)
        last["validation"] = found.loss
        if self.kept_epoch == epoch:
            self.history.accuracy = found.accuracy
        self.curves.add_validation(self.trainer.steps_done, found.loss)
        self.ledger.to("bookkeeping")
        chosen_by = "" if last["inner"] is None else f"inner loss {last['inner']:.4f}, "
        self.say(
            f"epoch {epoch}/{self.options.epochs}: training loss {last['train']:.4f}, {chosen_by}"
            f"validation loss {found.loss:.4f}, accuracy {found.accuracy:.3f}"
        )

    def _require_equal_weights(self) -> None:
        """Raise UserError with exit code 5 unless all ranks have the same weights."""
        found = self.trainer.strategy.gathered(weights_sha256(self.trainer.strategy.weights()))
        other = [str(rank) for rank, weights in enumerate(found) if weights != found[0]]
        if other:
            raise UserError(
                f"step {self.trainer.steps_done}: the weights of rank {', '.join(other)} are not those of rank 0; "
                "do not trust this device or what connects it; no model was written",
                exit_code=5,
            )

    def save(self, epoch_losses: dict[str, Any] | None = None) -> None:
        """Write a checkpoint on the first rank; all ranks must call it.

        `epoch_losses`: the losses of an epoch just ended.
        """
        if self.one_of_many:
            return
        self.ledger.to("checkpoint")
        self.trainer.require_finite()
        # Only the first rank writes the checkpoint: if its weights were wrong, all ranks would get them on resume.
        self._require_equal_weights()
        total = self.order.steps * self.options.epochs
        self.progress.phase("checkpoint", total, self.trainer.steps_done, epoch_losses)
        self.injector.checkpoint(self.saved_steps, self.trainer.steps_done)
        state = {**checkpoint.state_of(self.trainer), "kept": self.kept}
        if self.rank == 0:
            self.history.seconds, self.history.curves = self.ledger.seconds(), self.curves.state()
            manner = manner_of(self.options, self.trainer, self.micro)
            identity = identity_of(self.options, self.run, self.kind)
            checkpoint.write_checkpoint(self.folder, state, self.position, self.history, identity, manner)
        self.saved, self.saved_steps = time.monotonic(), self.trainer.steps_done
        self.progress.phase("step", total, self.trainer.steps_done)
        self.ledger.to("bookkeeping")

    def resume(self) -> None:
        """Continue from the last intact checkpoint; without any, start from the beginning and say so.

        UserError when the checkpoint belongs to another training.
        """
        found = checkpoint.last_checkpoint(self.folder, self.say)
        if len(set(self.trainer.strategy.gathered(found.path.name if found else ""))) > 1:
            raise UserError(f"{self.folder}: ranks find different checkpoints in it; all nodes must share --output")
        if found is None:
            self.say(f"--resume: no checkpoint in {self.folder}, starting from the beginning")
            return
        checkpoint.require_same_training(found, identity_of(self.options, self.run, self.kind))
        weights = self.trainer.strategy.weights()
        try:
            scaler, chooses = self.trainer.scaler.state_dict(), self.inner is not None
            validates = bool(len(self.validation))
            require_resumable(found, weights, scaler, self.order.steps, validates=validates, chooses=chooses)
            curves = Curves.from_state(found.history.curves)
            # What they hold is only used at the end of a training.
            curves.csv()
            Ledger(found.history.seconds).summary()
        except Exception as error:  # in an invented one anything can be anything
            raise UserError(f"{found.path}: holds no state of this training; train without --resume") from error
        begun = found.position.epoch - (not found.position.batch)
        if begun > self.options.epochs:
            what = "begun" if found.position.batch else "done"
            raise UserError(f"{found.path}: {begun} epochs are {what}; give --epochs as many, or more")
        manner = manner_of(self.options, self.trainer, self.micro)
        was = {"deterministic": False, "framework": "torch", "sdpa": manner["sdpa"], **found.manner}
        other = [f"{name} {value} (was {was.get(name)})" for name, value in manner.items() if value != was.get(name)]
        if other:
            self.say(f"--resume: with {', '.join(other)} the last digits may differ from an uninterrupted training")
        checkpoint.restore(self.trainer, found.state)
        self.kept, self.curves = found.state["kept"], curves
        self.saved_steps = self.trainer.steps_done
        self.position, self.history = found.position, found.history
        self.history.resumed_at.append(self.trainer.steps_done)
        self.history.injected_fault = self.history.injected_fault or self._fault
        self.say(f"{self.kind}: resumed after step {self.trainer.steps_done} from {found.path}")


def step_facts(step: Step) -> dict[str, Any]:
    """Return the step in the form of result and reference files."""
    return {"step": step.number, "loss": step.loss, "gradient_norm": finite(step.gradient_norm)}
