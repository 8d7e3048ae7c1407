"""Runs the programs of Slurm, which may be silent for minutes, print endlessly, or leave their pipes open."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from harness.base.errors import UserError

# Longest wait for an answer, in seconds: the programs wait for slurmctld as long as slurm.conf says, often ten seconds,
# and do so several times.
ANSWER_SECONDS = 60.0
# Pause between two looks at a program's output, in seconds.
POLL_SECONDS = 0.5
# Longest output, in bytes: some ten thousand nodes, as scontrol describes them.
MOST_BYTES = 16 << 20
WORDS_BYTES = 1000
PIPE_BYTES = 1 << 16
# Variables that override the options in a script. Others, such as the account that pays, stay as the user has set them.
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
# sbatch's words when slurmctld is not reachable, or takes no more jobs for now.
SILENT = (
    "Unable to contact slurm controller",
    "Connection refused",
    # slurmctld was killed in the middle of an answer.
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
# sbatch's words when this user has too many jobs in the queue.
LIMITED = ("AssocMaxSubmitJobLimit", "QOSMaxSubmitJob", "Job violates accounting/QOS")


class SlurmSilentError(Exception):
    """Raised when Slurm does not answer, or takes no more jobs for now. It may have done what it was asked to do."""


def run_slurm_program(
    words: Sequence[str],
    seconds: float = ANSWER_SECONDS,
    until: str | None = None,
    variables: dict[str, str] | None = None,
) -> str:
    """Return the output of a program of Slurm, run with these further variables; end it once it prints `until`.

    Raises:
        SlurmSilentError: when slurmctld does not answer, or takes no more jobs.
        UserError: when there is no such program, or it refuses the request.
    """
    try:
        # A process group of its own, because Ctrl-C is meant for the harness, not for a request that is under way.
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
    """Return what a program printed to its two outputs before it ended; end a program that takes or prints too much."""
    assert process.stdout is not None
    assert process.stderr is not None
    told, errors, why = bytearray(), bytearray(), ""
    end = time.monotonic() + seconds
    with process.stdout, process.stderr, selectors.DefaultSelector() as coming:
        for stream, printed in ((process.stdout, told), (process.stderr, errors)):
            os.set_blocking(stream.fileno(), False)
            coming.register(stream, selectors.EVENT_READ, printed)
        while not why:
            # Once the program has ended its output is complete, even if processes that it started keep its pipes open.
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
                coming.select(POLL_SECONDS)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
    if why:
        # With its process group: a site may have replaced the program by a script.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise SlurmSilentError(why)
    return told, errors


def _read(pipe: int, printed: bytearray) -> bool:
    """Read what is in a pipe, but little more than MOST_BYTES; return whether more may come."""
    while len(printed) <= MOST_BYTES:
        try:
            piece = os.read(pipe, PIPE_BYTES)
        except BlockingIOError:
            return True
        if not piece:
            break
        printed += piece
    return False
