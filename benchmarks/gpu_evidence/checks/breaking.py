"""Rows that crash or hang a process on the GPU: how it ends, what its log says, whether the GPU works afterwards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu_evidence.checks.harness_run import explained
from benchmarks.gpu_evidence.finding import Finding, Kit, Numbers, finding_or_differs
from vpoc.probes.check import PASSED, Check
from vpoc.probes.processes import end_session
from vpoc.probes.run_one import run_check
from vpoc.probes.site import Site, Skipped

SECONDS = {"device-assert": 60, "illegal-access": 60, "endless-kernel": 20}
"""Seconds that the process may take; the one with the endless kernel does not end by itself."""
EXPECTED = {"device-assert": "user-code", "illegal-access": "kernel-fault", "endless-kernel": None}
"""The class that `matrix explain` must find in the log; None: nothing is expected."""
TERM_S, KILL_S = 5.0, 20.0
HEALTH = Check("after", "the GPU works", 120, "vpoc.probes.checks.memory:allocate")


def broken(site: Site, _kit: Kit, kind: str) -> Finding:
    """Break the GPU from a child process, end what is left of the process, read its log, and use the GPU again."""
    if kind == "device-assert" and torch.version.hip:
        raise Skipped("torch for ROCm is built without assertions in kernels")
    log = site.folder / "log.txt"
    # The child has its own session, and must not outlive this process, because its kernel would hold the GPU.
    alone = f"from vpoc.ranks.child import die_with; die_with({os.getpid()})"
    code = f"{alone}; from {__name__} import BREAKS; BREAKS[{kind!r}]()"
    site.at(kind)
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(SECONDS[kind])
            ended = _how(process.returncode)
        except subprocess.TimeoutExpired:
            status, ended = None, f"still ran after {SECONDS[kind]} s"
    left = end_session(process.pid, TERM_S, KILL_S)
    seconds = time.monotonic() - began
    site.at("the GPU afterwards")
    after = run_check(HEALTH, site.device, 1.0, lambda: False)
    healthy = after is not None and after.outcome == PASSED
    said = explained(log)
    broke = status is None if kind == "endless-kernel" else status != 0 and _names_the_gpu(log)
    numbers: Numbers = {
        "broke": broke,
        "ended": ended,
        "seconds": seconds,
        "killable": not left,
        "healthy_after": healthy,
        "explained": said,
    }
    text = (
        f"{'' if broke else 'nothing broke: '}the process {ended}, "
        f"{'could be ended' if not left else 'cannot be killed'}; the GPU "
        f"{'works' if healthy else 'does not work'} afterwards; explained as {said or 'nothing'}"
    )
    right = broke and not left and healthy and (said is None or EXPECTED[kind] is None or said == EXPECTED[kind])
    return finding_or_differs(right, text, numbers)


def _names_the_gpu(log: Path) -> bool:
    text = log.read_text(encoding="utf-8", errors="replace")
    return any(words in text for words in ("CUDA error", "HIP error", "Memory access fault"))


def _how(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def _device_assert() -> None:
    """Use an index that is out of range, which a kernel detects."""
    values = torch.arange(8, device="cuda")
    values[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


class _Beyond:
    """Torch's memory with a false length of 4 TB, which nothing checks."""

    def __init__(self, values: torch.Tensor) -> None:
        place = (values.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (1 << 42,), "typestr": "|u1", "data": place, "version": 2}


def _illegal_access() -> None:
    """Run a kernel that writes to memory that it does not own."""
    values = torch.zeros(8, device="cuda")
    torch.as_tensor(_Beyond(values), device="cuda")[1 << 41 :][:8].fill_(1)
    torch.cuda.synchronize()


def _endless_kernel() -> None:
    """Run a kernel that counts for years, and wait for it."""
    torch.cuda._sleep(1 << 62)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()


BREAKS = {"device-assert": _device_assert, "illegal-access": _illegal_access, "endless-kernel": _endless_kernel}
