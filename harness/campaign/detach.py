"""Starts a command that outlives its terminal: as a unit of the user's systemd, or in a session of its own."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.base.errors import UserError
from harness.base.files.storage import cannot_be_written, open_regular

ANSWER_SECONDS = 10
# What a unit sees of the caller's environment besides the variables of our own.
PASSED_ON = ("PATH", "DOCKER_HOST", "HOME", "USER", "UV_FIND_LINKS")
OWN_PREFIX = "MATRIX_"


@dataclass(frozen=True)
class Detached:
    """A command in the background: what runs it, and the command that ends it in order."""

    by: str
    stop: str


def detach(command: Sequence[str], log: Path) -> Detached:
    """Start a command in the background, in this folder; what it says goes to the log.

    A unit of the user's systemd ends with the last login unless the user lingers: else it is a session of its own.

    Raises:
        UserError: when it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Systemd would follow a link.
    _opened(log).close()
    if _lingers() and shutil.which("systemd-run"):
        name = f"matrix-{os.getpid()}"
        if _asked(*unit_words(command, Path.cwd(), log, name)) is not None:
            return Detached(f"systemd, as unit {name}", f"systemctl --user stop {name}")
    return in_own_session(command, log)


def unit_words(command: Sequence[str], folder: Path, log: Path, name: str) -> list[str]:
    """Return the words that start a command as a unit; stopping the unit is Ctrl-C to it."""
    passed = [key for key in os.environ if key in PASSED_ON or key.startswith(OWN_PREFIX)]
    # The signal is for the command alone: it ends what it runs in order, and records it.
    properties = ("KillMode=mixed", "KillSignal=SIGINT", f"StandardOutput=append:{log}", f"StandardError=append:{log}")
    options = [*(f"--property={one}" for one in properties), *(f"--setenv={key}" for key in sorted(passed))]
    return [
        "systemd-run", "--user", "--quiet", "--collect", f"--unit={name}", f"--working-directory={folder}", *options,
        "--", *command,
    ]  # fmt: skip


def in_own_session(command: Sequence[str], log: Path) -> Detached:
    """Start a command in a session of its own, in which the end of a terminal is ignored.

    Raises:
        UserError: when it cannot be started.
    """
    said = _opened(log)
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, said.fileno(), 1),
        (os.POSIX_SPAWN_DUP2, said.fileno(), 2),
    ]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        # A shell without job control has its background jobs ignore Ctrl-C; here it is how the command is ended.
        pid = os.posix_spawnp(
            command[0], tuple(command), os.environ, file_actions=files, setsid=True, setsigdef=[signal.SIGINT]
        )
    except OSError as error:
        raise UserError(f"{command[0]}: could not be started: {error.strerror}; leave out --detach") from None
    finally:
        signal.signal(signal.SIGHUP, before)
        said.close()
    return Detached(f"process {pid}, in a session of its own", f"kill -INT {pid}")


def _opened(log: Path) -> BinaryIO:
    """Open the log to add to it: whoever shares its folder may have put a link or a FIFO there."""
    try:
        return open_regular(log, adding=True)
    except OSError as error:
        raise cannot_be_written(log, error) from None


def _lingers() -> bool:
    return (_asked("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value") or "").strip() == "yes"


def _asked(*words: str) -> str | None:
    """Return what a command says; None where it fails or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
