"""Chooses the Python that a stack uses as a process: one of this host, or else one that uv fetches."""

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from packaging.version import Version

from harness.base.errors import UserError
from harness.base.files.file_system_sync import sync_file_system
from harness.environments.python.uv_process import uv
from harness.matrix.stacks import Stack

# The variable with a mirror from which uv fetches interpreters, and the default source.
MIRROR = "UV_PYTHON_INSTALL_MIRROR"
SOURCE = "https://github.com/astral-sh/python-build-standalone/releases"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
_refused: dict[str, str] = {}


@cache
def find_python(version: str) -> Path | None:
    """Return an installed interpreter of a version such as 3.11; preferably the one that this tool runs on.

    The result is cached, because asking uv takes a quarter of a second.
    """
    if version == RUNNING and (own := _running()):
        return own
    try:
        return Path(uv("python", "find", "--no-python-downloads", "--system", version).strip())
    except UserError:
        return _of_pyenv(version)


def choose_python(stack: Stack) -> tuple[str, Path] | None:
    """Return version and path of the installed interpreter that a stack uses; None if there is no suitable one.

    The version in the stack's image comes first, so that process and image differ as little as possible. Then comes the
    version that this tool runs on, then the newest.
    """
    for version in dict.fromkeys([stack.python, RUNNING, *reversed(stack.pythons)]):
        if version in stack.pythons and (path := find_python(version)):
            return version, path
    return None


def ensure_python(stack: Stack, notify: Callable[[str], None] = lambda _: None) -> tuple[str, Path]:
    """Return version and path of the interpreter that a stack uses, fetched if this host has none.

    Raises:
        UserError: when none is installed and none can be fetched.
    """
    return choose_python(stack) or (stack.python, _fetch(stack.python, notify))


def python_source() -> str:
    """Return the URL from which uv fetches interpreters."""
    return os.environ.get(MIRROR) or SOURCE


def _fetch(version: str, notify: Callable[[str], None]) -> Path:
    notify(f"Python {version} is not installed; fetching it from {python_source()}")
    try:
        # Try this once in a process, because each attempt without a network is slow.
        if version in _refused:
            raise UserError(_refused[version])
        uv("python", "install", "--no-bin", version)
    except UserError as error:
        _refused[version] = str(error)
        raise UserError(
            f"Python {version} is not installed and could not be fetched from {python_source()} ({error}); "
            f"install it, or name a mirror in {MIRROR}"
        ) from None
    find_python.cache_clear()
    path = find_python(version)
    if path is None:
        raise UserError(f"Python {version} was fetched but cannot be found; install it by hand")
    # It is not fetched again: it must be whole also if a run takes the host down.
    sync_file_system(path.parent)
    return path


def _of_pyenv(version: str) -> Path | None:
    """Return the newest interpreter of a version in pyenv, because uv only finds the one that pyenv has switched on."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    held = [place for place in (root / "versions").glob(f"{version}.*") if re.fullmatch(r"[\d.]+", place.name)]
    found = [place / "bin" / f"python{version}" for place in sorted(held, key=lambda place: Version(place.name))]
    return next((python for python in reversed(found) if python.is_file()), None)


def _running() -> Path | None:
    """Return the interpreter that this tool's environment was made from; None for a build without published wheels."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    usual = sys.implementation.name == "cpython" and "t" not in sys.abiflags
    return base if usual and base.is_file() else None
