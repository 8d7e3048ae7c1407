"""Starts a command that outlives its terminal, as a unit of the user's systemd or in a session of its own."""

import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.base.errors import UserError
from harness.base.files.storage import cannot_be_written, open_regular
from harness.campaign.user_units import ask_tool, lingers, passed_on


@dataclass(frozen=True)
class Detached:
    """A command in the background. `by`: what runs it, in words; `stop`: the command that ends it in order."""

    by: str
    stop: str


def detach(command: Sequence[str], log: Path) -> Detached:
    """Start a command in the background in the current folder, with its output appended to the log.

    The command becomes a unit of the user's systemd if the user lingers. Otherwise such a unit would end with the last
    login, so the command gets a session of its own.

    Raises:
        UserError: when it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Check the log first, because systemd would follow a link.
    _opened(log).close()
    if lingers() and shutil.which("systemd-run"):
        name = f"matrix-{os.getpid()}"
        if ask_tool(*unit_words(command, Path.cwd(), log, name)).returncode == 0:
            return Detached(f"systemd, as unit {name}", f"systemctl --user stop {name}")
    return in_own_session(command, log)


def unit_words(command: Sequence[str], folder: Path, log: Path, name: str) -> list[str]:
    """Return the words that start a command as a unit; stopping the unit acts like Ctrl-C on the command."""
    # Signal the command alone: it ends its runs in order and records them.
    properties = ("KillMode=mixed", "KillSignal=SIGINT", f"StandardOutput=append:{log}", f"StandardError=append:{log}")
    options = [*(f"--property={one}" for one in properties), *(f"--setenv={key}" for key in sorted(passed_on()))]
    return [
        "systemd-run", "--user", "--quiet", "--collect", f"--unit={name}", f"--working-directory={folder}", *options,
        "--", *command,
    ]  # fmt: skip


def in_own_session(command: Sequence[str], log: Path) -> Detached:
    """Start a command in a session of its own, where it ignores the end of the terminal.

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
        # A shell without job control lets background jobs ignore SIGINT, but here SIGINT is how the command is stopped.
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
    """Open the log to append to it; refuse a link or a FIFO, which other users of its folder may have put there."""
    try:
        return open_regular(log, adding=True)
    except OSError as error:
        raise cannot_be_written(log, error) from None
