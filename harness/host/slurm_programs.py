"""Runs the programs of Slurm, which may be silent for minutes, print without an end, or leave their pipes open."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from harness.base.errors import UserError

# A program of Slurm waits for slurmctld as long as slurm.conf says, often ten seconds, several times over.
ANSWER_SECONDS = 60.0
# After so long it is looked whether a program says that it waits.
PATIENCE_SECONDS = 0.5
# Some ten thousand nodes, as scontrol describes them.
MOST_BYTES = 16 << 20
WORDS_BYTES = 1000
PIPE_BYTES = 1 << 16
# Variables that come before what a script says of itself; whose account pays, and the like, stays as the user has it.
OVERRIDES = frozenset(
    f"SBATCH_{name}"
    for name in (
        "ARRAY_INX",
        "EXCLUSIVE",
        "GRES",
        "JOB_NAME",
        "NO_REQUEUE",
        "OUTPUT",
        "PARTITION",
        "REQUEUE",
        "TIMELIMIT",
        "WAIT",
    )
)
# As sbatch says that slurmctld is not there, or takes no more jobs for now.
SILENT = (
    "Unable to contact slurm controller",
    "Connection refused",
    # Killed in the middle of an answer.
    "Connection reset by peer",
    "Connection aborted",
    "Broken pipe",
    "Insane message length",
    "Unexpected message received",
    "No route to host",
    "Network is unreachable",
    "Socket timed out",
    "Connection timed out",
    "Zero Bytes were transmitted",
    "Transport endpoint",
    "Resource temporarily unavailable",
)
# As it says that this user's part of the queue is full.
LIMITED = ("AssocMaxSubmitJobLimit", "QOSMaxSubmitJob", "Job violates accounting/QOS")


class SlurmSilentError(Exception):
    """Slurm does not answer now, or takes no more jobs for now: what was asked may have been done all the same."""


def answer_of_slurm(
    words: Sequence[str],
    seconds: float = ANSWER_SECONDS,
    until: str | None = None,
    variables: dict[str, str] | None = None,
) -> str:
    """Return what a program of Slurm prints, with further variables set; it is ended when it says `until`.

    Raises:
        SlurmSilentError: when slurmctld does not answer, or takes no more jobs.
        UserError: when there is no such program, or it refuses what is asked.
    """
    try:
        # Ctrl-C is for who asks, not for a question that is under way.
        process = subprocess.Popen(
            words,
            env={name: value for name, value in os.environ.items() if name not in OVERRIDES} | (variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except FileNotFoundError:
        raise UserError(f"{words[0]}: no such program; --on slurm needs the programs of Slurm on this host") from None
    told, errors = _printed(process, words[0], seconds, until)
    if process.returncode == 0:
        return told.decode(errors="replace")
    said = " ".join(errors[:WORDS_BYTES].decode(errors="replace").split()) or f"exit {process.returncode}"
    if any(text in said for text in (*SILENT, *LIMITED)):
        raise SlurmSilentError(said)
    raise UserError(f"{words[0]}: {said}")


def _printed(
    process: subprocess.Popen[bytes], program: str, seconds: float, until: str | None
) -> tuple[bytearray, bytearray]:
    """Return what a program prints to its two outputs until it has ended; one that goes on is ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    told, errors, why = bytearray(), bytearray(), ""
    end = time.monotonic() + seconds
    with process.stdout, process.stderr, selectors.DefaultSelector() as coming:
        for stream, printed in ((process.stdout, told), (process.stderr, errors)):
            os.set_blocking(stream.fileno(), False)
            coming.register(stream, selectors.EVENT_READ, printed)
        while not why:
            # Of one that has ended all is there, though what it started may keep its pipes open.
            ended = process.poll() is not None
            for key in list(coming.get_map().values()):
                if not _read(key.fd, key.data):
                    coming.unregister(key.fileobj)
            if max(len(told), len(errors)) > MOST_BYTES:
                why = f"{program} prints more than {MOST_BYTES >> 20} MiB"
            elif ended:
                break
            elif until is not None and until.encode() in errors:
                why = "its queue is full"
            elif time.monotonic() > end:
                why = f"{program} does not answer within {seconds:.0f} s"
            elif coming.get_map():
                coming.select(PATIENCE_SECONDS)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_SECONDS)
    if why:
        # With what it started: a site may have a script in the place of the program.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise SlurmSilentError(why)
    return told, errors


def _read(pipe: int, printed: bytearray) -> bool:
    """Read what is in a pipe, and no more than shows that it is too much; return whether more may come."""
    while len(printed) <= MOST_BYTES:
        try:
            piece = os.read(pipe, PIPE_BYTES)
        except BlockingIOError:
            return True
        if not piece:
            break
        printed += piece
    return False
