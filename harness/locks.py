"""Pins -> hashes: what exactly is installed for a stack."""

import os
import subprocess
from pathlib import Path

from uv import find_uv_bin

from harness.errors import UserError
from harness.matrix import Stack
from harness.paths import CACHE, LOCKS

# Of what uv says the beginning tells most.
WORDS = 400


def uv(*arguments: str | Path) -> str:
    """Run uv without the user's own configuration; return what it printed.

    Raises:
        UserError: with uv's last words when it fails.
    """
    command = [find_uv_bin(), "--no-config", "--no-progress", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        words = " ".join(line.strip() for line in run.stderr.splitlines() if line.strip())
        raise UserError(f"uv {' '.join(command[3:5])} failed: {words[:WORDS]}")
    return run.stdout


def wheel_folders() -> list[str]:
    """Folders of wheels that the user configured for pip or uv (`PIP_FIND_LINKS`, `UV_FIND_LINKS`)."""
    configured = os.environ.get("UV_FIND_LINKS", "").split(",") + os.environ.get("PIP_FIND_LINKS", "").split()
    return [place for place in configured if place]


def sources(stack: Stack) -> list[list[str]]:
    """Where wheels come from, as options of uv, in the order to try.

    Wheels the user holds locally come first: they make an unreachable index no obstacle. Which file is taken is
    decided by its hash, so mixing PyPI with the PyTorch index cannot bring in another package of the same name.
    """
    local = [option for folder in wheel_folders() for option in ("--find-links", folder)]
    index = ["--index", stack.index, "--index-strategy", "unsafe-best-match"]
    return [local, [*local, *index]] if local else [index]


def pins_file(stack: Stack) -> Path:
    """The file that names the versions of a stack."""
    return LOCKS / f"{stack.name}.in"


def lock_file(stack: Stack) -> Path:
    """The hash lock of a stack: the committed one, or the one this host resolved."""
    committed = LOCKS / f"{stack.name}.txt"
    return committed if committed.is_file() else CACHE / "locks" / f"{stack.name}.txt"


def ensure_lock(stack: Stack) -> Path:
    """The hash lock of a stack, resolved now where there is none yet.

    Raises:
        UserError: when the wheel index cannot be reached or has no such wheel.
    """
    lock = lock_file(stack)
    if not lock.is_file():
        lock.parent.mkdir(parents=True, exist_ok=True)
        temporary = lock.with_suffix(".tmp")
        platform = ["--python-version", stack.python, "--python-platform", "x86_64-manylinux_2_28"]
        output = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", "-o", str(temporary)]
        try_sources(stack, "pip", "compile", *platform, *output, pins_file(stack))
        temporary.replace(lock)
    return lock


def try_sources(stack: Stack, *arguments: str | Path) -> None:
    """Run uv with each source of wheels until one will do.

    Raises:
        UserError: what each of them said.
    """
    said = []
    for options in sources(stack):
        try:
            uv(*arguments, *options)
        except UserError as error:
            said.append(str(error))
        else:
            return
    raise UserError(f"stack {stack.name}: {'; then, with the PyTorch index: '.join(said)}")
