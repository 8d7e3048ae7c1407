"""Dumps stacks from outside, of Python and of C code below it, where this user may inspect the processes."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.host.processes.run_processes import RunProcess

SECONDS_EACH = 4.0
# Less than the longest wait for all evidence, so that what was read by then is kept.
SECONDS_ALL = 10.0
# py-spy reads the memory of a process, which may make it print endless symbols and names.
MOST_BYTES, MOST_MEMORY_BYTES = 1 << 20, 1 << 30
# After this many bytes no further process is read: the stacks of hundreds take less.
MOST_BYTES_OF_ALL = 4 << 20
LIMITED = ("/bin/sh", "-c", f'ulimit -f {MOST_BYTES >> 9}; ulimit -d {MOST_MEMORY_BYTES >> 10}; exec "$@"', "sh")

# py-spy opens the files that a process has mapped, by their names below /proc/PID/root. A process in a container can
# put a link in the place of such a file, and an absolute link leads to the files of whoever follows it. Here these are
# in a root directory that has only this process. Mounts made in a namespace end with it.
ALONE_WITH_IT = (
    *("unshare", "--mount", "--propagation", "private", "/bin/sh", "-e", "-c"),
    """
    PATH=$PATH:/usr/sbin:/sbin
    mount -t tmpfs -o mode=755 py-spy "$1"
    mkdir -p "$1/proc/$2" "$1/proc/self"
    touch "$1/py-spy"
    mount --bind "$3" "$1/py-spy"
    mount --bind "/proc/$2" "$1/proc/$2"
    mount --bind "/proc/$$" "$1/proc/self"
    root=$1
    shift 3
    exec chroot "$root" /py-spy "$@"
    """,
    "sh",
)


def dump_from_outside(processes: Sequence[RunProcess]) -> str:
    """Return the output of `py-spy dump` for each Python process.

    Raises:
        LookupError: when py-spy is not installed or not permitted, or there is no process to inspect.
    """
    program = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if program is None:
        raise LookupError("py-spy is not installed in the harness's environment")
    if not processes:
        raise LookupError("no process of the run is left")
    until = time.monotonic() + SECONDS_ALL
    ours = (process for process in processes if "python" in process.command)
    told, left = list[tuple[bool, str]](), MOST_BYTES_OF_ALL
    for process in ours:
        if time.monotonic() >= until or left <= 0:
            break
        told.append(_dump(program, process.pid))
        left -= len(told[-1][1])
    if not any(ok for ok, _ in told):
        raise LookupError(told[0][1] if told else "no process of the run is Python")
    return "\n".join(f"{text.strip()}\n" for _, text in told)


def _dump(program: str, pid: int) -> tuple[bool, str]:
    """Return whether the dump succeeded, and its output or error; with frames of C code if py-spy can read these."""
    answer = (False, "")
    for options in (("--native",), ("--nonblocking",)):
        words = ("dump", *options, "--pid", str(pid))
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            alone = (*ALONE_WITH_IT, root, str(pid), program) if _has_its_own_root(pid) else (program,)
            command = (*LIMITED, *alone, *words)
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


def _has_its_own_root(pid: int) -> bool:
    """Return whether a process may see other files than this one, as in a container.

    False for an ordinary user, who may mount nothing, and whose py-spy opens no more than that user may.
    """
    if os.geteuid() != 0:
        return False
    try:
        return not Path(f"/proc/{pid}/root").samefile("/")
    except OSError:
        # Not shown once its main thread has ended; but another thread can replace the whole process at any time.
        return True


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = next((line for line in lines if "ermi" in line), lines[0] if lines else "py-spy failed and said nothing")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    closed = "ermi" in words and scope.exists() and scope.read_text(encoding="ascii").strip() != "0"
    return f"py-spy: {words}" + (" (kernel.yama.ptrace_scope does not allow it)" if closed else "")
