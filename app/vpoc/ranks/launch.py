"""Starts the same command once per rank on this host, and ends all ranks safely in every case.

Standard library only.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpoc.errors import UserError, from_os_error
from vpoc.ranks.child import Child
from vpoc.ranks.folder import private_folder
from vpoc.ranks.output import End, Passage

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_EVERY_S = 0.02
UNKILLABLE_S = 10.0
"""Seconds after SIGKILL from which a process that has not ended is taken to hang in a driver."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together.

    `rendezvous`: file in which they meet; None if they meet as torchrun says.
    `exchange`: folder for shared memory; None if `launch` did not start them.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    rendezvous: str | None
    exchange: str | None = None


def ranks_of(environ: Mapping[str, str]) -> Ranks | None:
    """Return the ranks that `launch` or torchrun has started; None if this process was started alone.

    Raises:
        UserError: when the variables contradict each other.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    rank, world = _count("RANK", environ), _count("WORLD_SIZE", environ)
    local_rank = _count("LOCAL_RANK", environ, rank)
    local_world = _count("LOCAL_WORLD_SIZE", environ, world)
    if not (rank < world and local_rank < local_world <= world):
        raise UserError(
            f"RANK={rank} WORLD_SIZE={world} LOCAL_RANK={local_rank} LOCAL_WORLD_SIZE={local_world} in the environment "
            "do not fit together; start the ranks with torchrun, or unset these variables"
        )
    rendezvous, exchange = environ.get("VPOC_RENDEZVOUS"), environ.get("VPOC_EXCHANGE")
    return Ranks(rank, world, local_rank, local_world, rendezvous, exchange)


def _count(name: str, environ: Mapping[str, str], default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise UserError(
            f"{name}={text} in the environment is not the number of a rank or a count of ranks; "
            "start the ranks with torchrun, or unset RANK and WORLD_SIZE"
        )
    return int(text)


def launch(command: Sequence[str], world: int, *, grace_s: float = 15.0) -> int:
    """Run `world` processes of `command` on this host and wait for all; return the exit status for a shell.

    They get torchrun's usual variables, VPOC_RENDEZVOUS and VPOC_EXCHANGE. Their output is passed on in whole lines,
    with `rank N: ` in front for all but the first; rank 0 writes to a terminal directly.

    When a rank fails, a line on stderr names it, the others get SIGTERM and after `grace_s` seconds SIGKILL, and its
    status is returned. SIGINT and SIGTERM are passed on once, SIGHUP as SIGTERM; a second signal kills the ranks. The
    status is then 128 + signal. SIGUSR1 and SIGUSR2 are ignored. The ranks do not outlive this process, even when it is
    killed. Call it in the main thread.

    Raises:
        UserError: when the command cannot be started or there is no place for the folder that the ranks share.
    """
    with _signals() as listening, private_folder() as folder:
        passage = Passage()
        group = _Group(passage, grace_s)
        try:
            for rank in range(world):
                out, err = passage.ends(f"rank {rank}: " if rank else "", inherit_terminal=rank == 0)
                with out, err:
                    variables = {**os.environ, **_variables(rank, world, folder)}
                    group.children.append(_start(rank, command, variables, out, err, listening))
            listening.start()
            group.run(listening)
        finally:
            group.kill()
        return group.status


def _start(
    rank: int, command: Sequence[str], variables: Mapping[str, str], out: End, err: End, listening: "_Listening"
) -> Child:
    try:
        return Child(rank, command, variables, out.given, err.given, listening.mask)
    except OSError as error:
        raise from_os_error(error, Path(command[0])) from error


def _variables(rank: int, world: int, folder: Path) -> dict[str, str]:
    # Without a network, only the loopback interface is sure to exist.
    return {
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "VPOC_RENDEZVOUS": str(folder / "rendezvous"),
        "VPOC_EXCHANGE": str(folder),
    }


class _Group:
    """The ranks, and how they end."""

    def __init__(self, passage: Passage, grace_s: float) -> None:
        self.children: list[Child] = []
        self._passage = passage
        self._grace_s = grace_s
        self._first_failed: Child | None = None
        self._stopped_by: int | None = None
        self._kill_at: float | None = None
        self._killed = False

    @property
    def status(self) -> int:
        """The exit status of all ranks together."""
        if self._first_failed is not None:
            return self._first_failed.status or 1
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        return 0

    def run(self, listening: "_Listening") -> None:
        """Watch until all have ended, or cannot be killed, and their output is passed on."""
        keep_waiting = True
        while keep_waiting:
            self._look()
            if all(child.gone() for child in self.children):
                break
            self._passage.pump(listening.descriptor, self._poll_timeout())
            for signum in listening.received():
                self._handle_signal(signum)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                keep_waiting = self._kill_late()
        self._passage.finish(listening.descriptor, lambda: bool(listening.received()))

    def kill(self) -> None:
        """Send SIGKILL to all that still run, and to the processes that they started."""
        for child in self.children:
            child.kill()

    def _poll_timeout(self) -> float | None:
        if any(child.status is not None for child in self.children):
            # Poll, because the end of a process that a rank started gives no signal.
            return POLL_EVERY_S
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _look(self) -> None:
        failed = [child for child in self.children if child.poll() and child.status]
        if not failed or self._first_failed is not None or self._stopped_by is not None:
            return
        # Of several failures found at once, a rank that was killed did not end because another had.
        first = self._first_failed = max(failed, key=lambda child: child.signum is not None)
        others = "; the others are ended" if len(self.children) > 1 else ""
        self._say(f"rank {first.rank} (pid {first.pid}) failed first: it {first.how()}{others}")
        self._end()

    def _handle_signal(self, signum: int) -> None:
        if self._stopped_by is not None:
            self.kill()
            return
        self._stopped_by = signum
        # A rank reports the signal that ended it; a training handles SIGHUP like any program.
        self._end(signum if signum == signal.SIGINT else signal.SIGTERM)

    def _end(self, signum: int = signal.SIGTERM) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
        for child in self.children:
            child.ask_to_end(signum)

    def _kill_late(self) -> bool:
        """Kill the ranks that are late; return False if not even that ends them."""
        late = [child for child in self.children if child.status is None]
        if late:
            names = " and ".join(f"rank {child.rank} (pid {child.pid})" for child in late)
            after = f"did not end within {self._grace_s:g} s; killed"
            self._say(f"{names} {'cannot be killed: look at the kernel log' if self._killed else after}")
        if self._killed:
            return not late
        self.kill()
        self._killed = True
        self._kill_at = time.monotonic() + UNKILLABLE_S
        return True

    def _say(self, what: str) -> None:
        self._passage.say(f"vpoc: {what}")


class _Listening:
    """Signals as bytes on a descriptor that can be polled; signals that ask to stop are blocked until `start`.

    `mask`: the signals that were blocked before.
    """

    def __init__(self) -> None:
        # Signals that are ignored, as under nohup, stay ignored.
        self._heeded = [signum for signum in ENDING if signal.getsignal(signum) is not signal.SIG_IGN]
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._heeded)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        # Set this even if the parent process ignores SIGCHLD, because the exit status of children would be lost.
        self._before: dict[int, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, _nothing)}
        # The harness asks ranks for their stacks with these signals. Ignoring them here keeps them from ending this
        # process, and, since children inherit it, a rank that cannot answer yet.
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            self._before[signum] = signal.signal(signum, signal.SIG_IGN)
        self._descriptor_before = -1

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when a signal has come or a child has ended."""
        return self._ours.fileno()

    def start(self) -> None:
        """Receive signals from now on, including those that came meanwhile."""
        # Only after the ranks are started, because each would write here, too, until it runs its own program.
        self._descriptor_before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._before |= {signum: signal.signal(signum, _nothing) for signum in self._heeded}
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def received(self) -> list[int]:
        """Return the signals that asked to stop since the last call."""
        try:
            return [signum for signum in self._ours.recv(4096) if signum in ENDING]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Restore the state from before."""
        signal.set_wakeup_fd(self._descriptor_before)
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        self._ours.close()
        self._theirs.close()


def _nothing(_signum: int, _frame: object) -> None:
    """Do nothing; `set_wakeup_fd` takes effect only for signals that have a Python handler."""


@contextlib.contextmanager
def _signals() -> Iterator[_Listening]:
    listening = _Listening()
    try:
        yield listening
    finally:
        listening.close()
