"""Pins -> hashes: what exactly is installed for a stack."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from harness.base.errors import UserError
from harness.base.paths import CACHE, LOCKS
from harness.base.storage import file_hash, held_locks, write_json
from harness.matrix.cells import Stack

# Of what uv says the beginning tells most.
WORDS = 400


def uv(*arguments: str | Path) -> str:
    """Run uv without the user's own configuration; return what it printed.

    Raises:
        UserError: with uv's last words when it fails.
    """
    command = [find_uv_bin(), "--no-config", "--no-progress", *map(str, arguments)]
    # What it makes stays locked as long as it is at it, though this process may be killed.
    run = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=held_locks())
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
    """The hash lock of a stack: the committed one, or the one this host resolved from the same pins."""
    committed = LOCKS / f"{stack.name}.txt"
    return committed if committed.is_file() else CACHE / "locks" / f"{stack.name}-{pins_hash(stack)[:12]}.txt"


def pins_hash(stack: Stack) -> str:
    """Identity of the versions a stack names."""
    pins = pins_file(stack)
    return file_hash(pins) if pins.is_file() else "none"


def provenance(stack: Stack) -> dict[str, Any]:
    """When and where the lock of a stack was made, and the digest of its base image; empty where nothing was noted."""
    try:
        return dict(json.loads(lock_file(stack).with_suffix(".json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def base_digest(stack: Stack) -> str | None:
    """The digest that the stack's base image had when the lock was made; None where none was resolved."""
    if "@" in stack.base:
        return stack.base.partition("@")[2]
    noted = provenance(stack)
    lock = lock_file(stack)
    fits = noted.get("base") == stack.base and lock.is_file() and noted.get("lock") == file_hash(lock)
    return noted.get("base_digest") if fits else None


def ensure_lock(stack: Stack, digest: str | None = None) -> Path:
    """The hash lock of a stack, resolved now where there is none yet; `digest` is its base's, to be noted.

    Raises:
        UserError: when the wheel index cannot be reached or has no such wheel.
    """
    lock = lock_file(stack)
    return lock if lock.is_file() else make_lock(stack, lock, digest)


def make_lock(stack: Stack, lock: Path, digest: str | None = None) -> Path:
    """Resolve the pins of a stack into `lock`, and note beside it when and where that was, with the base's digest.

    Raises:
        UserError: when the wheel index cannot be reached or has no such wheel.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    temporary = lock.with_suffix(".tmp")
    target = ["--python-version", stack.python, "--python-platform", "x86_64-manylinux_2_28"]
    output = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", "-o", str(temporary)]
    if stack.torch_from_base:
        # The base brings the numpy that its torch was built with.
        output += ["--no-emit-package", "numpy"]
    try:
        try_sources(stack, "pip", "compile", *target, *output, pins_file(stack))
        note = {"schema": 1, "stack": stack.name, "made": time.time(), "host": platform.node(), "base": stack.base}
        note |= {"base_digest": digest, "pins": pins_hash(stack), "lock": file_hash(temporary)}
        write_json(lock.with_suffix(".json"), note)
        temporary.replace(lock)
    finally:
        temporary.unlink(missing_ok=True)
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
