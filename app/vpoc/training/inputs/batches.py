"""The order of the samples, cut into batches, rank shares and micro-batches: the same on every device."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Ints
from vpoc.data.prng import words


@dataclass(frozen=True)
class Cut:
    """The division of a batch among `world` ranks, into micro-batches of at most `micro_batch_size` samples."""

    micro_batch_size: int
    rank: int = 0
    world: int = 1

    def micro_batches(self, batch: Ints) -> list[Ints]:
        """Return the rank's share of a batch in as many parts as every rank has, of sizes as even as the shares allow.

        Ranks wait for each other in every part. An empty part therefore has one sample without weight, marked by the
        complement of its number.
        """
        parts = math.ceil(share_size(len(batch), self.world) / self.micro_batch_size)
        if self.world == parts == 1:
            return [batch]
        share = np.array_split(batch, self.world)[self.rank]
        return [part if len(part) else ~batch[:1] for part in np.array_split(share, parts)]


def share_size(batch_size: int, world: int) -> int:
    """Return the largest number of samples of a batch that one rank gets."""
    return math.ceil(batch_size / world)


def epoch_order(samples: int, seed: int, epoch: int) -> Ints:
    """Return the order of the samples in `epoch`, the same for every device, torch version and number of workers."""
    drawn = words(seed, epoch, samples)
    # Faster than a stable sort, with the same result unless two words are equal, which is rare.
    order = drawn.argsort()
    ordered = drawn[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = drawn.argsort(kind="stable")
    return order.astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The batches of an epoch. With `chunk_rows`, samples are shuffled within chunks of that size, and chunks as well.

    A chunk has whole batches, except the last one, so that there are as many batches as without chunks.
    """

    samples: int
    batch_size: int
    seed: int
    chunk_rows: int | None = None

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        return math.ceil(self.samples / self.batch_size)

    @property
    def chunk_size(self) -> int:
        """The number of samples in a chunk: `chunk_rows`, or a little more."""
        if self.chunk_rows is None:
            return max(self.samples, 1)
        return math.ceil(self.chunk_rows / self.batch_size) * self.batch_size

    def chunks(self, epoch: int) -> Iterator[tuple[int, Ints]]:
        """Yield, for each chunk, the number of its first batch in the epoch, and its samples in the order of use."""
        count = math.ceil(self.samples / self.chunk_size)
        done = 0
        # An epoch's random stream has the epoch's number; the order of chunks needs a stream that no epoch uses.
        for chunk in epoch_order(count, self.seed, -epoch) if count > 1 else [0]:
            start = int(chunk) * self.chunk_size
            size = min(self.chunk_size, self.samples - start)
            yield done, start + epoch_order(size, self.seed + int(chunk), epoch)
            done += math.ceil(size / self.batch_size)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Ints]:
        """Yield the batches of `epoch` from number `first` (from 0) on."""
        for before, chosen in self.chunks(epoch):
            for number in range(math.ceil(len(chosen) / self.batch_size)):
                if before + number >= first:
                    yield chosen[number * self.batch_size : (number + 1) * self.batch_size]
