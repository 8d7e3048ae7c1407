"""Feeds, which bring batches to the device: through a DataLoader, or from rows that reside there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from vpoc import stacks
from vpoc.arrays import Floats, Ints
from vpoc.training.faults.injector import NoFault
from vpoc.training.inputs.batches import Cut, Order
from vpoc.training.inputs.samples import PART, Samples
from vpoc.training.ledger import Ledger

NO_FAULT = NoFault()
Item = tuple[int, torch.Tensor]
"""The number of a sample, or its complement, and its inputs."""


@dataclass(frozen=True)
class Micro:
    """A micro-batch on the device: `inputs` [batch, ...], `labels`, `weights` [batch]."""

    inputs: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """The input of one optimizer step: this rank's `parts` micro-batches, and facts of the batch over all ranks.

    `divisor`: the sum of the weighted losses over this is their mean, with weights that are 1 on average over all
    samples: the number of the batch's samples times the mean weight.
    """

    micros: Iterator[Micro]
    parts: int
    samples: int
    divisor: float


@dataclass(frozen=True)
class LoaderFeed:
    """A DataLoader that fetches single samples in `workers` processes, with pinned memory and a copy per step."""

    samples: Samples
    order: Order
    cut: Cut
    device: torch.device
    workers: int
    ledger: Ledger
    injector: NoFault = NO_FAULT

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of `epoch` (from 1), from number `first` (from 0) on, brought to the device."""
        self.ledger.to("loader")
        loader = loaded(self.samples, _Shares(self, epoch, first), self.device, self.workers, self.injector)
        pages = _Pages(self.samples)
        mean = self.samples.mean_weight
        for batch in self.order.batches(epoch, first):
            pages.seen(len(batch))
            parts = len(self.cut.micro_batches(batch))
            micros = (self._next(loader) for _ in range(parts))
            yield Batch(micros, parts, len(batch), len(batch) * mean)

    def _next(self, loader: Iterator[list[torch.Tensor]]) -> Micro:
        self.ledger.to("loader")
        tensors = next(loader)
        self.ledger.to("copy")
        micro = Micro(*(tensor.to(self.device, non_blocking=True) for tensor in tensors))
        self.ledger.to("device")
        return micro


@dataclass(frozen=True)
class Chunk:
    """A chunk of samples on the device, from the sample `start` on.

    `inputs` [rows, features]; `ends`, `labels`, `weights` [samples]: the row that each ends with, and as in Samples.
    """

    start: int
    inputs: torch.Tensor
    ends: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


class ResidentFeed:
    """Keeps all rows, or those of a chunk, on the device, and picks each batch from them there."""

    def __init__(self, samples: Samples, order: Order, cut: Cut, device: torch.device, ledger: Ledger) -> None:
        self.samples, self.order, self.cut, self.device, self.ledger = samples, order, cut, device, ledger
        self._mean = samples.mean_weight
        self._held: Chunk | None = None
        self._steps = torch.arange(1 - samples.window, 1, device=device)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """As LoaderFeed.epoch."""
        size = self.order.batch_size
        for chunk, left in self._chunks(epoch, first):
            for at in range(0, len(left), size):
                batch = left[at : at + size]
                shares = self.cut.micro_batches(batch)
                micros = (self._pick(chunk, part) for part in shares)
                yield Batch(micros, len(shares), len(batch), len(batch) * self._mean)

    def resident(self, epoch: int, first: int = 0) -> Iterator[tuple[Chunk, torch.Tensor, Floats]]:
        """Yield what `epoch` works on: chunks, the order of what is left of their samples, and divisors of batches."""
        size = self.order.batch_size
        for chunk, left in self._chunks(epoch, first):
            sizes = np.minimum(len(left) - np.arange(0, len(left), size), size)
            yield chunk, torch.from_numpy(left - chunk.start).to(self.device), sizes * self._mean

    def _chunks(self, epoch: int, first: int) -> Iterator[tuple[Chunk, Ints]]:
        """Yield the chunks of which something is left from batch `first` on, and the numbers of those samples."""
        for before, chosen in self.order.chunks(epoch):
            left = chosen[max(first - before, 0) * self.order.batch_size :]
            if len(left):
                yield self._load(int(chosen.min()), int(chosen.max()) + 1), left

    def _load(self, start: int, stop: int) -> Chunk:
        if self._held is None or self._held.start != start:
            self.ledger.to("loader")
            self._held = None
            part = self.samples.take(slice(start, stop))
            first = int(part.ends[0]) - part.window + 1
            arrays = part.inputs[first : int(part.ends[-1]) + 1], part.ends - first, part.labels, part.weights
            self._held = Chunk(start, *(torch.from_numpy(np.array(array)).to(self.device) for array in arrays))
            self.samples.forget_pages()
            self.ledger.to("device")
        return self._held

    def _pick(self, chunk: Chunk, part: Ints) -> Micro:
        empty = part[0] < 0
        places = torch.from_numpy((~part if empty else part) - chunk.start).to(self.device, non_blocking=True)
        weights = chunk.weights[places]
        inputs = _windows(chunk.inputs, chunk.ends[places], self._steps)
        return Micro(inputs, chunk.labels[places], torch.zeros_like(weights) if empty else weights)


Feed = LoaderFeed | ResidentFeed


def _windows(rows: torch.Tensor, ends: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """The rows that end in `ends` [samples], each with those before it; `steps`: 1 - window to 0."""
    return rows[ends if len(steps) == 1 else ends[:, None] + steps]


def loaded(
    samples: Samples, batches: Iterable[list[int]], device: torch.device, workers: int, injector: NoFault = NO_FAULT
) -> Iterator[list[torch.Tensor]]:
    """Return the inputs, labels and weights from a DataLoader, for each list of numbers in `batches`.

    Its workers start at once.
    """
    items = injector.items(_Items(samples))
    with stacks.in_workers() as first_call:
        return iter(
            DataLoader(
                items,
                batch_sampler=batches,
                collate_fn=_Collate(samples),
                num_workers=workers,
                pin_memory=device.type == "cuda",
                worker_init_fn=first_call,
            )
        )


def resident_in_order(samples: Samples, batch_size: int, device: torch.device) -> Iterator[Micro]:
    """Yield all samples in file order, `batch_size` at a time, picked on the device from rows that are copied there."""
    size = max(PART // batch_size, 1) * batch_size
    steps = torch.arange(1 - samples.window, 1, device=device)
    for start in range(0, len(samples), size):
        part = samples.take(slice(start, start + size))
        first = int(part.ends[0]) - samples.window + 1
        arrays = part.inputs[first : int(part.ends[-1]) + 1], part.ends - first, part.labels, part.weights
        rows, *columns = (torch.from_numpy(array).to(device) for array in arrays)
        for ends, labels, weights in zip(*(torch.split(column, batch_size) for column in columns), strict=True):
            yield Micro(_windows(rows, ends, steps), labels, weights)
        samples.forget_pages()


class _Shares:
    """The sample numbers of this rank's micro-batches, in the order in which the loader is asked for them."""

    def __init__(self, feed: LoaderFeed, epoch: int, first: int) -> None:
        self._batches: Callable[[], Iterator[Ints]] = lambda: feed.order.batches(epoch, first)
        self._cut, self._injector = feed.cut, feed.injector
        self._first_step = (epoch - 1) * feed.order.steps + first + 1

    def __iter__(self) -> Iterator[list[int]]:
        for step, batch in enumerate(self._batches(), start=self._first_step):
            for part in self._cut.micro_batches(batch):
                yield self._injector.requested(step, part.tolist())


@dataclass(frozen=True)
class InOrder:
    """The numbers of `samples` samples in file order, `batch_size` at a time, for a loader."""

    samples: int
    batch_size: int

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.samples, self.batch_size):
            yield list(range(start, min(start + self.batch_size, self.samples)))


class _Items(Dataset[Item]):
    """Single samples, as their numbers and inputs."""

    def __init__(self, samples: Samples) -> None:
        self._rows, self._ends, self._window = torch.from_numpy(samples.inputs), samples.ends, samples.window
        self._samples = len(samples)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> Item:
        end = int(self._ends[number if number >= 0 else ~number])
        return number, self._rows[end if self._window == 1 else slice(end - self._window + 1, end + 1)]


class _Collate:
    """Collates the inputs, labels and weights of a batch; the complement of a number is that sample with weight 0.

    Labels and weights are picked for the whole batch, because picking them singly, as tensors, would take as long as
    picking the inputs.
    """

    def __init__(self, samples: Samples) -> None:
        # Arrays, because mapped files are slower to pick from; numpy, because it is faster than torch for few numbers.
        self._labels, self._weights = np.asarray(samples.labels), np.asarray(samples.weights)
        self._pages = _Pages(samples)

    def __call__(self, items: Sequence[Item]) -> list[torch.Tensor]:
        numbers = np.array([number for number, _ in items])
        places = np.maximum(numbers, ~numbers)
        weights = self._weights[places] * (numbers >= 0)
        # This forgets pages of the process that reads them, which may be a worker.
        self._pages.seen(len(items))
        inputs = default_collate([inputs for _, inputs in items])
        return [inputs, torch.from_numpy(self._labels[places]), torch.from_numpy(weights)]


class _Pages:
    """Forgets the pages of mapped samples after every PART samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._seen = 0

    def seen(self, count: int) -> None:
        """Count `count` samples that were read."""
        self._seen += count
        if self._seen >= PART:
            self._samples.forget_pages()
            self._seen = 0
