"""Runs uv with limits, without the user's configuration, and without secrets among its arguments."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from harness.base.certificates import trusting
from harness.base.errors import NoAnswerError, UserError
from harness.base.files.locks import held_locks

# Longest error of uv that is quoted, in characters; its beginning says most.
WORDS = 400
CONFIG = "--config-file"
INDEXES = {"--index": "UV_INDEX", "--default-index": "UV_DEFAULT_INDEX"}
# The `rocm` source package takes its GPU from this variable while it is resolved and built, and fails where the index
# has no such one; the stack's targets say which GPU is meant.
TARGET_FAMILY = "ROCM_SDK_TARGET_FAMILY"
# Memory limit of uv, because it reads the pages of an index as a whole, and they may be endless.
MOST_MEMORY_BYTES = 4 << 30
# Time limit for resolving, because an endless page may arrive in pieces that are each in time, and for building,
# because `rocm` asks the host's driver for its GPUs.
RESOLVE_SECONDS = 1800
LIMITED = ("/bin/sh", "-c", f'ulimit -d {MOST_MEMORY_BYTES >> 10}; exec "$@"', "sh")


def uv(*arguments: str | Path, variables: Mapping[str, str] | None = None) -> str:
    """Run uv without the user's configuration (or with that of `--config-file`), and return its output.

    Raises:
        NoAnswerError: when resolving versions, or building a package, takes too long.
        UserError: when uv fails, with its error.
    """
    # Import here, because the user's own interpreter runs without uv.
    from uv import find_uv_bin  # noqa: PLC0415

    words, indexes = _without_indexes([str(argument) for argument in arguments])
    inherited = {name: value for name, value in trusting(os.environ).items() if name != TARGET_FAMILY}
    environment = {**inherited, **indexes, **(variables or {})}
    configured = () if CONFIG in arguments else ("--no-config",)
    command = [*LIMITED, find_uv_bin(), *words, "--no-progress", *configured]
    seconds = RESOLVE_SECONDS if {"compile", "build"}.intersection(words[:2]) else None
    what = f"uv {' '.join(words[:2])}"
    # Pass the locks on, so that they are held as long as uv works, even if this process is killed.
    run = partial(subprocess.run, capture_output=True, text=True, pass_fds=held_locks(), env=environment, check=False)
    try:
        done = run(command, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"{what}: is not done within {seconds} s; an index is too slow, or the GPU driver hangs"
        ) from None
    if done.returncode:
        said = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise UserError(f"{what} failed: {said[:WORDS]}")
    return str(done.stdout)


def _without_indexes(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return arguments without the URLs of indexes, and these as variables.

    A URL may hold a password, and everybody on this host can read the arguments of a process.
    """
    words = list(arguments)
    variables: dict[str, str] = {}
    for option, variable in INDEXES.items():
        while option in words:
            place = words.index(option)
            variables[variable] = " ".join(filter(None, (variables.get(variable), words[place + 1])))
            del words[place : place + 2]
    return words, variables
