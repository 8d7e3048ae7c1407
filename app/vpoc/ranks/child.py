"""One of several processes, in its own process group, which does not outlive the process that started it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence, Set

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: sets the signal that this process gets when the thread that started it ends."""
LINGER_S = 3.0
"""Seconds that processes which a rank leaves behind (loader workers, a tracker of shared memory) have to end."""

_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Have this process killed when its parent, whose pid is `parent`, ends in any way; Linux only.

    Call it first in a child. The kernel watches the parent's thread that started the child, so that thread must be one
    that stays.
    """
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before the kernel was asked to watch it.
        os.kill(os.getpid(), signal.SIGKILL)


class Child:
    """A running rank.

    Its process group is its own, so that Ctrl-C reaches it only through its launcher, and so that the processes which
    it started can be ended with it.

    `stdout`, `stderr`: descriptors, None for those of this process.
    `mask`: the signals that the rank is to block.
    `status`: its exit status as a shell sees it (128 + n for signal n); None while it runs.

    Raises:
        OSError: when the program cannot be started.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        variables: Mapping[str, str],
        stdout: int | None,
        stderr: int | None,
        mask: Set[int],
    ) -> None:
        self.rank = rank
        self.status: int | None = None
        self.signum: int | None = None
        self.asked_to_end = False
        self._killed = False
        self._group_gone = False
        self._kill_group_at = 0.0
        parent = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            die_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        self.process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=prepare,  # noqa: PLW1509 - no thread of ours runs yet, and only the child can ask for its death
        )
        self.pid = self.process.pid

    def poll(self) -> bool:
        """Return whether it has ended since the last call."""
        if self.status is not None or self.process.poll() is None:
            return False
        code = self.process.returncode
        self.signum = -code if code < 0 else None
        self.status = code if code >= 0 else 128 - code
        self._kill_group_at = time.monotonic() + LINGER_S
        self._signal_group(signal.SIGTERM)
        return True

    def ask_to_end(self, signum: int = signal.SIGTERM) -> None:
        """Signal only the process, once: it ends its own children when it has finished its work."""
        if self.status is None and not self.asked_to_end:
            self.asked_to_end = True
            self.process.send_signal(signum)

    def kill(self) -> None:
        """Send SIGKILL to the process and to the processes that it started."""
        self._killed = True
        self._signal_group(signal.SIGKILL)

    def gone(self) -> bool:
        """Return whether the process and its group have ended; kill processes that have lingered for too long."""
        if self.status is None:
            return False
        with contextlib.suppress(ChildProcessError):
            # If this is the first process of a container, it has inherited what the rank left behind.
            os.waitpid(-self.pid, os.WNOHANG)
        if self._signal_group(0) and time.monotonic() > self._kill_group_at:
            self.kill()
        # Killed counts as gone: waiting for zombies that nobody collects would never end.
        self._group_gone |= self._killed
        return self._group_gone

    def how(self) -> str:
        """Return how it ended, in words."""
        if self.signum is None:
            return f"ended with exit status {self.status}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(self.signum).name}"
        return f"was killed by signal {self.signum}"

    def _signal_group(self, signum: int) -> bool:
        """Signal the group until it has been seen empty, because then its number may belong to another group."""
        if self._group_gone:
            return False
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            self._group_gone = self.status is not None
            return False
        return True
