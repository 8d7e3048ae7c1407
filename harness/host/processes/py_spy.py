"""Stacks from outside, Python's and those of C code below it, where this user may look into the processes."""

import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.host.processes.run_processes import RunProcess

SECONDS_EACH = 4.0
# Less than is waited for all of it: what was read by then is kept.
SECONDS_ALL = 10.0
# What it reads is the process's own, and so is what it makes of that: symbols without number, names without end.
MOST_BYTES, MOST_MEMORY_BYTES = 1 << 20, 1 << 30
LIMITED = ("/bin/sh", "-c", f'ulimit -f {MOST_BYTES >> 9}; ulimit -d {MOST_MEMORY_BYTES >> 10}; exec "$@"', "sh")


def dump_from_outside(processes: Sequence[RunProcess]) -> str:
    """Return what `py-spy dump` says of each Python process.

    Raises:
        LookupError: when it is not installed, may not look, or there is nothing to look at.
    """
    program = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if program is None:
        raise LookupError("py-spy is not installed in the harness's environment")
    if not processes:
        raise LookupError("no process of the run is left")
    until = time.monotonic() + SECONDS_ALL
    ours = (process for process in processes if "python" in process.command)
    told = [_dump(program, process.pid) for process in ours if time.monotonic() < until]
    if not any(ok for ok, _ in told):
        raise LookupError(told[0][1] if told else "no process of the run is Python")
    return "\n".join(f"{text.strip()}\n" for _, text in told)


def _dump(program: str, pid: int) -> tuple[bool, str]:
    """Return whether it told, and what, with the frames of C code if it can read those."""
    answer = (False, "")
    for options in (("--native",), ("--nonblocking",)):
        command = (*LIMITED, program, "dump", *options, "--pid", str(pid))
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                done = subprocess.run(command, stdout=out, stderr=err, timeout=SECONDS_EACH, check=False)
            except subprocess.TimeoutExpired:
                answer = False, f"py-spy: process {pid} could not be read within {SECONDS_EACH:.0f} s"
                continue
            told = out if done.returncode == 0 else err
            told.seek(0)
            text = told.read(MOST_BYTES).decode(errors="replace")
        if done.returncode == 0:
            return True, text
        answer = False, _reason(text)
    return answer


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = next((line for line in lines if "ermi" in line), lines[0] if lines else "py-spy failed and said nothing")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    closed = "ermi" in words and scope.exists() and scope.read_text(encoding="ascii").strip() != "0"
    return f"py-spy: {words}" + (" (kernel.yama.ptrace_scope does not allow it)" if closed else "")
