"""Ending a process or a GPU: what becomes of the process, what its log says, whether the GPU works afterwards."""

import signal
import subprocess
import sys
import time

import torch

from benchmarks.gpu_evidence.checks.harness_run import explained
from benchmarks.gpu_evidence.finding import Finding, Kit, Numbers, held_if
from vpoc.probes.check import PASSED, Check
from vpoc.probes.processes import end_session
from vpoc.probes.run_one import run_check
from vpoc.probes.site import Site

SECONDS = {"device-assert": 60, "illegal-access": 60, "endless-kernel": 20}
"""How long the process may take; that with the endless kernel does not end by itself."""
EXPECTED = {"device-assert": "user-code", "illegal-access": "kernel-fault", "endless-kernel": None}
"""Class that `matrix explain` is to find in the log."""
TERM_S, KILL_S = 5.0, 20.0
HEALTH = Check("after", "the GPU works", 120, "vpoc.probes.checks.memory:allocate")


def broken(site: Site, _kit: Kit, kind: str) -> Finding:
    """Break the GPU in a process of its own, end what is left of it, read its log, and use the GPU again."""
    log = site.folder / "log.txt"
    code = f"from {__name__} import BREAKS; BREAKS[{kind!r}]()"
    site.at(kind)
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(SECONDS[kind])
            ended = _how(process.returncode)
        except subprocess.TimeoutExpired:
            ended = f"still ran after {SECONDS[kind]} s"
    left = end_session(process.pid, TERM_S, KILL_S)
    seconds = time.monotonic() - began
    site.at("the GPU afterwards")
    after = run_check(HEALTH, site.device, 1.0, lambda: False)
    healthy = after is not None and after.outcome == PASSED
    said = explained(log)
    numbers: Numbers = {
        "ended": ended,
        "seconds": seconds,
        "killable": not left,
        "healthy_after": healthy,
        "explained": said,
    }
    text = (
        f"the process {ended}, {'could be ended' if not left else 'cannot be killed'}; the GPU "
        f"{'works' if healthy else 'does not work'} afterwards; explained as {said or 'nothing'}"
    )
    right = not left and healthy and (said is None or EXPECTED[kind] is None or said == EXPECTED[kind])
    return held_if(right, text, numbers)


def _how(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def _device_assert() -> None:
    """An index that is out of range, found by a kernel."""
    values = torch.arange(8, device="cuda")
    values[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


def _illegal_access() -> None:
    """A kernel that adds to memory that is not its own: this internal call leaves out the check of indices."""
    values = torch.zeros(8, device="cuda")
    wild = torch.tensor([1 << 40], device="cuda")
    torch.ops.aten._index_put_impl_(values, [wild], torch.ones(1, device="cuda"), True, True)
    torch.cuda.synchronize()


def _endless_kernel() -> None:
    """A kernel that counts for years, and a wait for it."""
    torch.cuda._sleep(1 << 62)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()


BREAKS = {"device-assert": _device_assert, "illegal-access": _illegal_access, "endless-kernel": _endless_kernel}
