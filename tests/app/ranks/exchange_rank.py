"""Run one rank of an exchange: `python exchange_rank.py SCENARIO FOLDER RANK WORLD`; prints its result as JSON."""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from vpoc.ranks.exchange import Corrupted, RankLost, SharedGradients

NUMEL = 1003
ROUNDS = 1000


def synthetic(rank: int, number: int) -> np.ndarray:
    values = np.random.default_rng([rank, number]).standard_normal(NUMEL) * 10.0 ** (rank - 1)
    return values.astype(np.float32)


def in_order(world: int, number: int) -> np.ndarray:
    total = synthetic(0, number)
    for rank in range(1, world):
        total = total + synthetic(rank, number)
    return total


def sums(exchange: SharedGradients, rank: int, world: int) -> int:
    right = 0
    for number in range(ROUNDS // 10):
        mine = synthetic(rank, number)
        found = exchange.sum(mine)
        assert found is mine
        right += found.tobytes() == in_order(world, number).tobytes()
    return right


def with_delays(exchange: SharedGradients, rank: int, world: int) -> int:
    """Exchange with random delays; each round has its own values, so that a slot overwritten too early is noticed."""
    chance = np.random.default_rng(rank)
    right = 0
    for number in range(ROUNDS):
        if chance.random() < 0.05:
            time.sleep(chance.random() * 0.004)
        if number % 3 == 2:
            mine = np.array([rank + 0.1, number / 7])
            right += np.array_equal(exchange.gather(mine), [[r + 0.1, number / 7] for r in range(world)])
            continue
        values = np.full(NUMEL, (rank + 1) * (number + 1), np.float32)
        right += bool((exchange.sum(values) == (number + 1) * world * (world + 1) / 2).all())
    return right


def numbers(exchange: SharedGradients, rank: int, world: int) -> list[str]:
    return [float(x).hex() for x in exchange.sum_numbers(np.array([0.1 * 3**rank, (1e16, 1.0, -1e16)[rank]]))]


def killed(exchange: SharedGradients, rank: int, world: int) -> None:
    exchange.barrier()
    if rank == 1:
        # Like a loader worker, the child inherits the open files of its parent.
        if os.fork() == 0:
            os.close(1)
            note = Path(sys.argv[2], "worker.new")
            note.write_text(str(os.getpid()))
            note.rename(note.with_name("worker"))
            time.sleep(60)
            os._exit(0)
        while not Path(sys.argv[2], "worker").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    exchange.sum(synthetic(rank, 0))


def left(exchange: SharedGradients, rank: int, world: int) -> None:
    if rank == 1:
        exchange.close()
        time.sleep(1)
        return
    exchange.barrier()


def done_and_gone(exchange: SharedGradients, rank: int, world: int) -> list[float]:
    if rank == 0:
        time.sleep(0.5)
    return exchange.sum_numbers(np.ones(1)).tolist()


def asleep(exchange: SharedGradients, rank: int, world: int) -> None:
    missed = [Path(sys.argv[2], f"missed-{other}") for other in (0, 1)]
    with SharedGradients(Path(sys.argv[2]), rank, world, NUMEL, timeout_s=3) as another:
        while rank >= 2 and not all(file.exists() for file in missed):
            time.sleep(0.01)
        try:
            another.barrier()
        except RankLost:
            if rank < 2:
                missed[rank].touch()
            raise


def flipped(exchange: SharedGradients, rank: int, world: int) -> None:
    exchange.sum(synthetic(rank, 0))
    if rank == 1:
        exchange.flip_next()
    exchange.sum(synthetic(rank, 1))


def flipped_number(exchange: SharedGradients, rank: int, world: int) -> None:
    if rank == 0:
        exchange.flip_next()
    exchange.gather(np.array([1.0]))


def out_of_step(exchange: SharedGradients, rank: int, world: int) -> None:
    exchange.sum(synthetic(rank, 0))
    if rank == 1:
        exchange.gather(np.ones(3))
    else:
        exchange.sum(synthetic(rank, 0))


def no_name_left(exchange: SharedGradients, rank: int, world: int) -> list[str]:
    return [path.name for path in Path(sys.argv[2]).iterdir()]


def no_room(exchange: SharedGradients, rank: int, world: int) -> None:
    raise AssertionError


def one_after_another(exchange: SharedGradients, rank: int, world: int) -> list[float]:
    exchange.close()
    found = []
    for number in range(20):
        with SharedGradients(Path(sys.argv[2]), rank, world, number, timeout_s=10) as another:
            found.append(another.sum_numbers(np.array([number + rank / 2]))[0])
    return found


def main() -> None:
    scenario, folder, rank, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if scenario == "no_room" and rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    timeout_s = 1.0 if scenario in ("never_came", "no_room") else 20.0
    started = time.monotonic()
    told: dict[str, object] = {}
    try:
        with SharedGradients(folder, rank, world, NUMEL, timeout_s=timeout_s) as exchange:
            told["returned"] = globals()[scenario](exchange, rank, world)
    except RankLost as lost:
        told |= {"lost": lost.ranks, "text": str(lost)}
    except Corrupted as corrupted:
        told |= {"corrupted": corrupted.rank, "text": str(corrupted)}
    except Exception as error:
        told |= {"error": type(error).__name__, "text": str(error)}
    told["seconds"] = time.monotonic() - started
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
