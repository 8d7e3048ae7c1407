"""Ending a process or a GPU: what becomes of the process, what its log says, whether the GPU works afterwards."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu_evidence.checks.harness_run import explained
from benchmarks.gpu_evidence.finding import Finding, Kit, held_if
from vpoc.gpu_memory.amdgpu import find_cards, owners
from vpoc.probes.check import PASSED, Check
from vpoc.probes.processes import end_session
from vpoc.probes.run_one import run_check
from vpoc.probes.site import Site

SECONDS = {"device-assert": 60, "illegal-access": 60, "endless-kernel": 20}
"""How long the process may take; that with the endless kernel does not end by itself."""
EXPECTED = {"device-assert": "user-code", "illegal-access": "kernel-fault", "endless-kernel": None}
"""Class that `matrix explain` is to find in the log."""
TERM_S, KILL_S = 5.0, 20.0
TOOL_S = 30
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
    numbers = {"ended": ended, "seconds": seconds, "killable": not left, "healthy_after": healthy, "explained": said}
    text = (
        f"the process {ended}, {'could be ended' if not left else 'cannot be killed'}; the GPU "
        f"{'works' if healthy else 'does not work'} afterwards; explained as {said or 'nothing'}"
    )
    right = not left and healthy and (said is None or EXPECTED[kind] is None or said == EXPECTED[kind])
    return held_if(right, text, numbers)


def _how(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def why_not(device: str) -> str | None:
    """Return why nothing may be broken here: a display, another process, or nobody to ask; None when it may."""
    if device == "cpu":
        return "needs a GPU"
    if torch.version.hip:
        cards = find_cards()
        shown = [card.address for card in cards for path in card.folder.glob("drm/card*-*/status") if _connected(path)]
        others = [str(owner.pid) for owner in owners() if owner.pid != os.getpid()]
        return _reason(bool(cards), shown, others)
    if not shutil.which("nvidia-smi"):
        return "nobody can be asked whether a display or another process uses this GPU"
    shown = [line for line in _asked("--query-gpu=display_active") if line.strip() != "Disabled"]
    others = [pid for pid in _asked("--query-compute-apps=pid") if pid.strip() != str(os.getpid())]
    return _reason(True, shown, others)


def _reason(known: bool, shown: list[str], others: list[str]) -> str | None:
    if not known:
        return "nobody can be asked whether a display or another process uses this GPU"
    if shown:
        return f"a display is connected ({', '.join(shown)})"
    return f"other processes hold the GPU ({', '.join(others)})" if others else None


def _connected(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() == "connected"
    except OSError:
        return False


def _asked(query: str) -> list[str]:
    words = ["nvidia-smi", query, "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TOOL_S, check=False)
    return [line for line in done.stdout.splitlines() if line.strip()]


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
