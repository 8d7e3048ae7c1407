"""Sums numbers of several processes of one host through shared memory: it uses no collective library."""

import contextlib
import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats, Floats32
from vpoc.errors import UserError, from_os_error

EXCHANGE_FILE = "gradients"
MOST_NUMBERS = 1024
"""float64 numbers that each rank can put beside its gradient."""
LINE = 64
"""Bytes of a cache line: no two ranks write to the same line."""
SPINS = 100
SHORTEST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 1e-3
PEERS_CHECKED_EVERY_S = 0.05
"""Seconds after which a waiting rank checks again that the others still run."""
ROUND, SUM = 0, 1


class RankLost(UserError):  # noqa: N818 - what happened, as with Interrupted
    """`ranks` did not come in time, or have ended. The exit status is 1."""

    def __init__(self, ranks: list[int], how: str) -> None:
        self.ranks = ranks
        names = " and ".join(f"rank {rank}" for rank in ranks)
        super().__init__(f"{names} {how}; its own messages say why; --resume continues", exit_code=1)


class Corrupted(UserError):  # noqa: N818
    """The memory of `rank` has other content than the rank put there. The exit status is 1."""

    def __init__(self, rank: int, what: str) -> None:
        self.rank = rank
        super().__init__(f"the shared memory of rank {rank} {what}; test the memory of this host", exit_code=1)


class SharedGradients:
    """Sums over `world` ranks of `numel` float32 and of up to 1024 float64, bitwise identical on every rank.

    All ranks make the same calls in the same order. `folder` is private to this run and on this host, best in /dev/shm;
    its file is unlinked once all ranks have opened it, so that nothing is left however they end. A rank that does not
    come within `timeout_s` is lost, one that has ended is lost at once.

    Every rank has two slots and uses them in turn: a rank that is ahead writes into the slot that no other reads, and
    cannot be further ahead, since it waits for all in every round. Every slot has a checksum of its words.

    Raises:
        RankLost: a rank did not come in time, or has ended.
        Corrupted: a rank's numbers changed on the way.
        UserError: there is no room in `folder`.
    """

    def __init__(self, folder: Path, rank: int, world: int, numel: int, *, timeout_s: float) -> None:
        self._rank, self._world, self._numel, self._timeout_s = rank, world, numel, timeout_s
        self._round = 0
        self._flip_next = False
        slots = np.dtype(
            [
                # The round and a checksum of each content.
                ("checks", [("values", np.uint64, 2), ("numbers", np.uint64, 2)]),
                ("line", np.uint8, LINE - 32),
                ("numbers", np.float64, MOST_NUMBERS),
                # Whole cache lines, and therefore whole words for the checksum.
                ("values", np.float32, -(-numel * 4 // LINE) * LINE // 4),
            ]
        )
        rows = np.dtype([("counter", np.int64), ("line", np.uint8, LINE - 8), ("slots", slots, 2)])
        path = folder / EXCHANGE_FILE
        self._descriptor = _create(path, rows.itemsize * world) if rank == 0 else self._open(path)
        self._memory = np.frombuffer(mmap.mmap(self._descriptor, rows.itemsize * world), rows)
        # The kernel holds the lock as long as this process lives: its loader workers do not inherit it.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        try:
            self.barrier()
            if rank == 0:
                path.unlink()
            # Wait, so that no rank that goes on to the next exchange in this folder finds this one's file.
            self.barrier()
        except BaseException:
            self.close()
            if rank == 0:
                path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> "SharedGradients":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave: ranks that still wait for this one see it as lost, unless it has finished its part."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def sum(self, values: Floats32) -> Floats32:
        """The sum of the ranks' `values`, [numel], as ((r0 + r1) + r2) + ..., in `values` itself.

        Raises:
            RankLost, Corrupted: see the class.
        """
        if values.shape != (self._numel,) or values.dtype != np.float32:
            raise ValueError(f"{values.dtype} {values.shape} instead of float32 ({self._numel},)")
        self._put("values", values)
        slots = self._others("values")
        np.copyto(values, slots[0]["values"][: self._numel])
        for slot in slots[1:]:
            np.add(values, slot["values"][: self._numel], out=values)
        return values

    def gather(self, numbers: Floats) -> Floats:
        """Return the ranks' `numbers`, [k] with the same k of at most 1024, as [world, k].

        Raises:
            RankLost, Corrupted: see the class.
        """
        if numbers.ndim != 1 or len(numbers) > MOST_NUMBERS or numbers.dtype != np.float64:
            raise ValueError(f"{numbers.dtype} {numbers.shape} instead of float64 with at most {MOST_NUMBERS}")
        self._put("numbers", numbers)
        return np.stack([slot["numbers"][: len(numbers)] for slot in self._others("numbers")])

    def sum_numbers(self, numbers: Floats) -> Floats:
        """Return the sum of the ranks' `numbers`, [k], in the order of the ranks; errors as in `gather`."""
        rows = self.gather(numbers)
        total: Floats = rows[0].copy()
        for row in rows[1:]:
            total += row
        return total

    def barrier(self) -> None:
        """Wait until all ranks have reached this call; RankLost as in the class."""
        self._round += 1
        self._memory[self._rank]["counter"] = self._round
        self._wait()

    def flip_next(self) -> None:
        """Flip a bit of what this rank puts next, after its checksum was computed (an injected fault)."""
        self._flip_next = True

    def _slot(self, rank: int) -> Any:
        return self._memory[rank]["slots"][self._round % 2]

    def _put(self, kind: str, content: npt.NDArray[Any]) -> None:
        self._round += 1
        slot = self._slot(self._rank)
        section = slot[kind]
        section[: len(content)] = content
        slot["checks"][kind] = self._round, _checksum(section)
        if self._flip_next:
            self._flip_next = False
            section.view(np.uint8)[1] ^= 4
        # Update the counter last: a rank that sees it may read the slot.
        self._memory[self._rank]["counter"] = self._round
        self._wait()

    def _others(self, kind: str) -> list[Any]:
        """Return the slots of all ranks, in their order, after checking each."""
        slots = [self._slot(rank) for rank in range(self._world)]
        for rank, slot in enumerate(slots):
            if slot["checks"][kind][ROUND] != self._round:
                raise Corrupted(rank, "does not hold this step, but another")
            if slot["checks"][kind][SUM] != _checksum(slot[kind]):
                raise Corrupted(rank, "does not hold what was put there: bits have changed")
        return slots

    def _wait(self) -> None:
        counters = self._memory["counter"]
        for _ in range(SPINS):
            if counters.min() >= self._round:
                return
            os.sched_yield()
        started = looked = time.monotonic()
        pause = SHORTEST_SLEEP_S
        while counters.min() < self._round:
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_SLEEP_S)
            now = time.monotonic()
            if now - looked > PEERS_CHECKED_EVERY_S:
                looked = now
                self._require_present()
            if now - started > self._timeout_s and (late := self._late()):
                raise RankLost(late, f"did not come within {self._timeout_s:g} s")

    def _late(self) -> list[int]:
        return [rank for rank, counter in enumerate(self._memory["counter"]) if counter < self._round]

    def _require_present(self) -> None:
        # A rank that has not come yet holds no lock yet either.
        ended = [rank for rank in self._late() if self._memory[rank]["counter"] > 0 and not self._holds(rank)]
        # It may have finished its part and then ended.
        if lost := [rank for rank in ended if rank in self._late()]:
            raise RankLost(lost, "has ended")

    def _holds(self, rank: int) -> bool:
        """Return whether the process of `rank` lives and has not left."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return True
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, rank)
        return False

    def _open(self, path: Path) -> int:
        until = time.monotonic() + self._timeout_s
        while not path.exists():
            if time.monotonic() > until:
                raise RankLost([0], f"did not come within {self._timeout_s:g} s")
            time.sleep(LONGEST_SLEEP_S)
        try:
            return os.open(path, os.O_RDWR)
        except OSError as error:
            raise from_os_error(error, path) from error


def _checksum(section: npt.NDArray[Any]) -> int:
    """Return the sum of the section's 64-bit words, modulo 2^64, which any change within one word changes."""
    return int(section.view(np.uint64).sum(dtype=np.uint64))


def _create(path: Path, size: int) -> int:
    """Create a file of `size` zeros that others see only when it is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # Allocate its blocks: otherwise the first store into a page could raise SIGBUS, not an error.
            os.posix_fallocate(descriptor, 0, size)
            temporary.rename(path)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise UserError(
            f"{path.parent}: no room for {size / 1e6:.0f} MB that the ranks share ({error.strerror}); "
            "free some, or give the container more with --shm-size",
            exit_code=1,
        ) from error
    return descriptor
