"""Feeds bring batches to the device: through a DataLoader, or from rows that are resident there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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
"""Number of a sample, or its complement, and its inputs."""


@dataclass(frozen=True)
class Micro:
    """A micro-batch on the device: `inputs` [batch, ...], `labels`, `weights` [batch]."""

    inputs: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """The input of one optimizer step: this rank's `parts` micro-batches, and facts of the batch of all ranks.

    `divisor`: what the sum of its weighted losses is divided by, to be their mean over weights that are 1 on average
    over all samples: the number of its samples times the mean weight.
    """

    micros: Iterator[Micro]
    parts: int
    samples: int
    divisor: float


class Feed(Protocol):
    """Brings the batches of an epoch, from one of them on, to the device."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of `epoch` (from 1), from number `first` (from 0) on."""


@dataclass(frozen=True)
class LoaderFeed:
    """A DataLoader that fetches sample by sample, in `workers` processes, with pinned memory and a copy per step."""

    samples: Samples
    order: Order
    cut: Cut
    device: torch.device
    workers: int
    ledger: Ledger
    injector: NoFault = NO_FAULT

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """As Feed.epoch."""
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
class Resident:
    """A chunk on the device, and what is left to do of it.

    `tensors`: rows, and labels and weights of its samples; `ends`: the row of each sample. `order`: samples that are
    left, in the order they are used; `divisors`: of each batch of them, as in Batch.
    """

    tensors: list[torch.Tensor]
    ends: torch.Tensor
    order: torch.Tensor
    divisors: Floats


class ResidentFeed:
    """All rows, or those of a chunk, are on the device; a batch is picked from them there."""

    def __init__(self, samples: Samples, order: Order, cut: Cut, device: torch.device, ledger: Ledger) -> None:
        self.samples, self.order, self.cut, self.device, self.ledger = samples, order, cut, device, ledger
        self._mean = samples.mean_weight
        self._held: tuple[int, Micro] | None = None
        self._steps = torch.arange(1 - samples.window, 1, device=device)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """As Feed.epoch."""
        for before, chosen in self.order.chunks(epoch):
            size = self.order.batch_size
            if before + -(-len(chosen) // size) <= first:
                continue
            start, rows, ends = self._load(chosen)
            for number in range(max(first - before, 0), -(-len(chosen) // size)):
                batch = chosen[number * size : (number + 1) * size]
                shares = self.cut.micro_batches(batch)
                micros = (self._pick(rows, ends, part, start) for part in shares)
                yield Batch(micros, len(shares), len(batch), len(batch) * self._mean)

    def resident(self, epoch: int, first: int = 0) -> "Iterator[Resident]":
        """Yield what `epoch` works on from batch `first` on, chunk by chunk."""
        size = self.order.batch_size
        for before, chosen in self.order.chunks(epoch):
            left = chosen[max(first - before, 0) * size :]
            if not len(left):
                continue
            start, rows, ends = self._load(chosen)
            sizes = np.minimum(len(left) - np.arange(0, len(left), size), size)
            order = torch.from_numpy(left - start).to(self.device)
            yield Resident([rows.inputs, rows.labels, rows.weights], ends, order, sizes * self._mean)

    def _load(self, chosen: Ints) -> tuple[int, Micro, torch.Tensor]:
        """The first sample of the chunk; its rows, labels and weights, and where windows end, on the device."""
        start, stop = int(chosen.min()), int(chosen.max()) + 1
        if self._held is None or self._held[0] != start:
            self.ledger.to("loader")
            self._held = None
            first_row = int(self.samples.ends[start]) - self.samples.window + 1
            last_row = int(self.samples.ends[stop - 1]) + 1
            parts = (
                self.samples.inputs[first_row:last_row],
                self.samples.labels[start:stop],
                self.samples.weights[start:stop],
            )
            ends = torch.from_numpy(self.samples.ends[start:stop] - first_row).to(self.device)
            held = Micro(*(torch.from_numpy(np.array(part)).to(self.device) for part in parts))
            self._held = start, held
            self._ends = ends
            self.samples.forget_pages()
            self.ledger.to("device")
        return start, self._held[1], self._ends

    def _pick(self, rows: Micro, ends: torch.Tensor, part: Ints, start: int) -> Micro:
        empty = part[0] < 0
        places = torch.from_numpy((~part if empty else part) - start).to(self.device, non_blocking=True)
        at = ends[places]
        inputs = rows.inputs[at if self.samples.window == 1 else at[:, None] + self._steps]
        weights = rows.weights[places]
        return Micro(inputs, rows.labels[places], torch.zeros_like(weights) if empty else weights)


def loaded(
    samples: Samples, batches: Iterable[list[int]], device: torch.device, workers: int, injector: NoFault = NO_FAULT
) -> Iterator[list[torch.Tensor]]:
    """Inputs, labels and weights from a DataLoader whose workers run from now on, a batch of numbers at a time."""
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
    """Yield all samples in file order, `batch_size` at a time, picked on the device from rows that are there."""
    size = max(PART // batch_size, 1) * batch_size
    steps = torch.arange(1 - samples.window, 1, device=device)
    for start in range(0, len(samples), size):
        part = samples.take(slice(start, start + size))
        first = int(part.ends[0]) - samples.window + 1
        arrays = part.inputs[first : int(part.ends[-1]) + 1], part.ends - first, part.labels, part.weights
        rows, *columns = (torch.from_numpy(array).to(device) for array in arrays)
        for ends, labels, weights in zip(*(torch.split(column, batch_size) for column in columns), strict=True):
            yield Micro(rows[ends if samples.window == 1 else ends[:, None] + steps], labels, weights)
        samples.forget_pages()


class _Shares:
    """Sample numbers of this rank's micro-batches, in order: what the loader is asked for."""

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
    """Numbers of `samples` samples in file order, `batch_size` at a time: what a loader is asked for."""

    samples: int
    batch_size: int

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.samples, self.batch_size):
            yield list(range(start, min(start + self.batch_size, self.samples)))


class _Items(Dataset[Item]):
    """Samples one by one, as their numbers and inputs."""

    def __init__(self, samples: Samples) -> None:
        self._rows, self._ends, self._window = torch.from_numpy(samples.inputs), samples.ends, samples.window
        self._samples = len(samples)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> Item:
        end = int(self._ends[number if number >= 0 else ~number])
        return number, self._rows[end if self._window == 1 else slice(end - self._window + 1, end + 1)]


class _Collate:
    """Inputs, labels and weights of a batch; the complement of a number is that sample with no weight.

    Labels and weights are picked for the whole batch: one by one, as tensors, they would take as long as inputs.
    """

    def __init__(self, samples: Samples) -> None:
        # Arrays, not mapped files, which are slower to pick from; and numpy, which is quicker with few numbers.
        self._labels, self._weights = np.asarray(samples.labels), np.asarray(samples.weights)
        self._pages = _Pages(samples)

    def __call__(self, items: Sequence[Item]) -> list[torch.Tensor]:
        numbers = np.array([number for number, _ in items])
        places = np.maximum(numbers, ~numbers)
        weights = self._weights[places] * (numbers >= 0)
        # In whatever process reads them.
        self._pages.seen(len(items))
        inputs = default_collate([inputs for _, inputs in items])
        return [inputs, torch.from_numpy(self._labels[places]), torch.from_numpy(weights)]


class _Pages:
    """Forgets pages now and then."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._seen = 0

    def seen(self, count: int) -> None:
        """So many samples were looked at."""
        self._seen += count
        if self._seen >= PART:
            self._samples.forget_pages()
            self._seen = 0
