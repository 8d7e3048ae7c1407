"""Several devices, or several processes, that work together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import permutations

import torch
import torch.distributed as dist
from torch import nn

from vpoc.features.table import NAMES
from vpoc.models.by_name import fresh_network
from vpoc.probes.check import WRONG_RESULT
from vpoc.probes.numbers import require_close, require_equal
from vpoc.probes.site import Answer, Call, Site, Skipped, WrongResultError
from vpoc.ranks.launch import Ranks
from vpoc.training.strategies.distributed import join, leave

MESSAGE_BYTES = (4 << 10, 1 << 20, 64 << 20)
"""Message sizes in bytes."""
RANKS_ON_CPU = 2
ROUNDS = 3
RANK_POLL_S = 0.05


def peer_copy(site: Site) -> str:
    """Copies from every GPU to every other, each read back and compared."""
    devices = _several(site)
    reached = []
    for source, target in permutations(devices, 2):
        for size in MESSAGE_BYTES:
            site.at(f"{size} bytes from {source} to {target}")
            pattern = torch.arange(size // 4, dtype=torch.int32).mul_(-1640531535)
            there = pattern.to(source)
            for _ in range(ROUNDS):
                require_equal(there.to(target), pattern, f"copy from {source} to {target}")
        direct = torch.cuda.can_device_access_peer(source, target)
        reached.append(f"{source} to {target} {'directly' if direct else 'through the host'}")
    return ", ".join(reached)


def data_parallel(site: Site) -> str:
    """Compare outputs of the attention model, split over all GPUs by nn.DataParallel, with the CPU's."""
    devices = _several(site)
    site.at(f"forward over {len(devices)} GPUs")
    rows = torch.randn(32, 32, len(NAMES), generator=torch.Generator().manual_seed(0))
    model = fresh_network("attention", len(NAMES), (), 7)
    with torch.no_grad():
        wanted = fresh_network("attention", len(NAMES), (), 7).double()(rows.double())
        found = nn.DataParallel(model.to(devices[0]))(rows.to(devices[0]))
    error = require_close(found, wanted, 1e-4, "answers over several GPUs")
    return f"{len(devices)} GPUs, within {error:.1g} of the CPU's float64"


def all_reduce(site: Site) -> str:
    """Sums over one process per GPU, or over two processes on a CPU. With one GPU the library is at least started."""
    count = RANKS_ON_CPU if site.device == "cpu" else len(site.devices)
    run_ranks(site, f"{__name__}:all_reduce_rank", count)
    if count == 1:
        return f"1 rank over {_backend(site)}, which starts; sums over several GPUs were not tried"
    return f"{count} ranks over {_backend(site)}, sums exact"


def run_ranks(site: Site, function: str, count: int, *arguments: str) -> list[str]:
    """Call `function` (`module:function`) in `count` processes and return their results, in order.

    It gets its own Site, the rank, the count, the path of a file over which ranks can meet, and `arguments`.
    WrongResultError as a rank raised it; RuntimeError for the first rank that failed, after which the others are ended.
    """
    site.at(f"starting {count} processes")
    sites = [Site(site.device, site.folder / f"rank-{rank}", site.stacks_at) for rank in range(count)]
    given = str(count), str(site.folder / "store"), *arguments
    ranks = [_start_rank(place, function, str(rank), *given) for rank, place in enumerate(sites)]
    # The other ranks wait for a failed one, so the first failure ends them all.
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        site.at("; ".join(f"rank {number}: {place.stage() or 'starting'}" for number, place in enumerate(sites)))
        time.sleep(RANK_POLL_S)
    codes = [rank.poll() for rank in ranks]
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
        rank.wait()
    return _details(codes, [Answer.read(place.folder) for place in sites])


def _details(codes: Sequence[int | None], answers: Sequence[Answer | None]) -> list[str]:
    for rank, answer in enumerate(answers):
        if answer is not None and answer.outcome == WRONG_RESULT:
            raise WrongResultError(f"rank {rank}: {answer.detail}")
    for rank, (code, answer) in enumerate(zip(codes, answers, strict=True)):
        if code is not None and (code != 0 or answer is None):
            said = answer.detail if answer else "no answer"
            died = f"died of {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            raise RuntimeError(f"rank {rank}: {died}, {said}")
    return [answer.detail for answer in answers if answer is not None]


def all_reduce_rank(site: Site, number: str, count: str, store: str) -> str:
    """One process of `all_reduce`; `store` is a file over which the processes find each other."""
    rank, ranks = int(number), int(count)
    device = torch.device("cpu") if site.device == "cpu" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Wait until a little after the stacks are written, so that they show which rank waits for which.
    wait = max(site.stacks_at - time.monotonic() + 60, 60)
    join(Ranks(rank, ranks, rank, ranks, rendezvous=store), _backend(site), device, wait)
    for size in MESSAGE_BYTES:
        pattern = torch.arange(size // 4, dtype=torch.int32).remainder_(1 << 20)
        wanted = pattern * (ranks * (ranks + 1) // 2)
        for turn in range(ROUNDS):
            site.at(f"sum {turn + 1} of {size} bytes on {device}")
            values = (pattern * (rank + 1)).to(device)
            dist.all_reduce(values)
            require_equal(values, wanted, f"sum of {size} bytes on rank {rank}")
    site.at("leaving")
    leave(device)
    return "sums exact"


def _several(site: Site) -> tuple[torch.device, ...]:
    if site.device == "cpu":
        raise Skipped("this is between GPUs")
    if len(site.devices) < 2:
        raise Skipped("this is between GPUs, and only one is visible")
    return site.devices


def _backend(site: Site) -> str:
    return "gloo" if site.device == "cpu" else "nccl"


def _start_rank(site: Site, function: str, *arguments: str) -> subprocess.Popen[bytes]:
    site.folder.mkdir()
    call = Call(function, arguments, site, os.getpid())
    # All ranks are on this machine: the loopback works without a network and without a name for the host.
    network = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-m", "vpoc.probes.check_process", call.to_json()], env={**network, **os.environ}
    )
