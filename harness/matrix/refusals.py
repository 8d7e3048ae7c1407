"""Finds workload options that the app would refuse, before a run, as far as cell and options tell. Pure."""

from collections.abc import Iterator
from itertools import chain

from packaging.version import Version

from harness.matrix.cells import Cell
from harness.matrix.workloads import Workload

TARGETS = {"bar": ("up_30", "prior_vpoc_touched"), "session": ("next_up", "next_vpoc_touched")}
# The first torch versions with a loss scaler for a CPU, and with `fully_shard`.
SCALER_ON_CPU, FULLY_SHARD = Version("2.3"), Version("2.6")

# Fewest sessions that must be left to train on, by kind of row.
FEWEST_SESSIONS = {"bar": 3, "session": 4}


def with_lookback(workload: Workload, lookback: int, *, synthetic: bool) -> Workload:
    """Return a workload with another lookback; `synthetic`: it runs on its own synthetic bars, whose number is limited.

    Raises:
        ValueError: when too few sessions would be left to train on.
    """
    longest = workload.synthetic.sessions - FEWEST_SESSIONS[workload.rows]
    if synthetic and lookback > longest:
        raise ValueError(
            f"workload {workload.name} has {workload.synthetic.sessions} synthetic sessions, so that the lookback is "
            f"{longest} at most"
        )
    return workload.model_copy(update={"lookback": lookback})


def why_refused(cell: Cell, workload: Workload) -> str | None:
    """Return why the app would refuse a workload in a cell; None if no reason is known."""
    return next(chain(_whatever_the_device(cell, workload), _on_the_device(cell, workload)), None)


def _whatever_the_device(cell: Cell, workload: Workload) -> Iterator[str]:
    if workload.as_of == "open" and workload.rows != "session":
        yield "as_of open is for rows: session"
    if workload.target and workload.target not in TARGETS[workload.rows]:
        its = next(rows for rows, targets in TARGETS.items() if workload.target in targets)
        choose = " or ".join(TARGETS[workload.rows])
        yield f"target {workload.target} is for rows: {its}; for rows: {workload.rows} choose {choose}"
    if (
        workload.chunk_rows
        and workload.rows == "bar"
        and workload.vpoc_path != "cpu"
        and cell.preset.phases == ("train",)
    ):
        yield f"vpoc_path {workload.vpoc_path} needs all bars in memory, which chunk_rows avoids; leave out one"
    if workload.strategy == "fsdp" and workload.micro_batch_size == "auto":
        yield "micro_batch_size auto does not work with strategy fsdp; give a number"


def _on_the_device(cell: Cell, workload: Workload) -> Iterator[str]:
    if cell.stack.accelerator == "any":
        return
    on_cpu, torch = cell.stack.device == "cpu", Version(cell.stack.torch or "0")
    dtype = workload.mixed_precision_dtype or ("bfloat16" if on_cpu else "float16")
    scaled = workload.use_mixed_precision and dtype == "float16"
    if on_cpu and workload.backend == "nccl":
        yield "backend nccl works on GPUs only; choose gloo"
    if on_cpu and workload.strategy == "dp":
        yield "strategy dp needs two GPUs; choose single or ddp"
    if on_cpu and workload.sdpa == "efficient":
        yield "sdpa efficient has no kernel for a CPU; choose auto, math or flash"
    if on_cpu and scaled and torch < SCALER_ON_CPU:
        yield f"torch {torch} has no loss scaler for a CPU; choose mixed_precision_dtype bfloat16"
    if not on_cpu and workload.sdpa == "flash" and not workload.use_mixed_precision:
        yield "sdpa flash has no kernel for float32 on a GPU; ask for use_mixed_precision as well"
    if workload.strategy == "dp" and workload.use_mixed_precision and not scaled:
        yield "strategy dp computes in float16; leave mixed_precision_dtype out"
    if workload.strategy == "fsdp" and scaled:
        yield "strategy fsdp has no loss scaler; choose mixed_precision_dtype bfloat16"
    if workload.strategy == "fsdp" and torch < FULLY_SHARD:
        yield f"strategy fsdp needs torch {FULLY_SHARD} or newer; choose ddp or averaging"
