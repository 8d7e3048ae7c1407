"""Which Python a stack takes as a process: one that this host has, else one that uv fetches."""

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from packaging.version import Version

from harness.base.errors import UserError
from harness.environments.python.uv_process import uv
from harness.matrix.stacks import Stack

# Where uv fetches interpreters from, unless the user's variable names a mirror.
MIRROR = "UV_PYTHON_INSTALL_MIRROR"
SOURCE = "https://github.com/astral-sh/python-build-standalone/releases"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
_refused: dict[str, str] = {}


@cache
def find_python(version: str) -> Path | None:
    """Return an installed interpreter of a version such as 3.11: the one this tool runs on before any other.

    Looked for once: to ask uv takes a quarter of a second.
    """
    if version == RUNNING and (own := _running()):
        return own
    try:
        return Path(uv("python", "find", "--no-python-downloads", "--system", version).strip())
    except UserError:
        return _of_pyenv(version)


def choose_python(stack: Stack) -> tuple[str, Path] | None:
    """Return the version and path of the installed interpreter that a stack takes; None where none will do.

    First the version its image has, so that process and image differ in nothing they need not, then the one this tool
    runs on, then the newest.
    """
    for version in dict.fromkeys([stack.python, RUNNING, *reversed(stack.pythons)]):
        if version in stack.pythons and (path := find_python(version)):
            return version, path
    return None


def ensure_python(stack: Stack, notify: Callable[[str], None] = lambda _: None) -> tuple[str, Path]:
    """Return the version and path of the interpreter that a stack takes, fetched where this host has none.

    Raises:
        UserError: when none is installed and none can be fetched.
    """
    return choose_python(stack) or (stack.python, _fetch(stack.python, notify))


def python_source() -> str:
    """Return where uv fetches interpreters from."""
    return os.environ.get(MIRROR) or SOURCE


def _fetch(version: str, notify: Callable[[str], None]) -> Path:
    notify(f"Python {version} is not installed; fetching it from {python_source()}")
    try:
        # Once in a process: each try against a network that is not there takes its time.
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
    return path


def _of_pyenv(version: str) -> Path | None:
    """Return the newest interpreter of a version that pyenv holds: uv finds only the one that is switched on."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    held = [place for place in (root / "versions").glob(f"{version}.*") if re.fullmatch(r"[\d.]+", place.name)]
    found = [place / "bin" / f"python{version}" for place in sorted(held, key=lambda place: Version(place.name))]
    return next((python for python in reversed(found) if python.is_file()), None)


def _running() -> Path | None:
    """Return the interpreter that this tool's environment was made from; None for a build that wheels are not for."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    usual = sys.implementation.name == "cpython" and "t" not in sys.abiflags
    return base if usual and base.is_file() else None
