"""The environment of a cell: for processes one virtual environment per stack, otherwise the image of the cell."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.base.contract import CONTRACT, OLD_CONTRACT
from harness.base.errors import NoSpaceError, UserError
from harness.base.files.file_system_sync import sync_file_system
from harness.base.files.hashes import file_hash, json_hash, tree_hash
from harness.base.files.locks import SHORT_LOCK_SECONDS, locked
from harness.base.files.storage import write_json
from harness.base.paths import APP, APPS, ENVIRONMENTS, REHEARSAL
from harness.environments.compiled_kernel import compiler, ensure_kernel, place_kernel
from harness.environments.in_use import keep_in_place, wait_for_processes
from harness.environments.python import pins
from harness.environments.python.interpreters import choose_python, ensure_python
from harness.environments.python.pins import REACH, Build, UnreachableError
from harness.environments.python.uv_process import uv
from harness.environments.python.wheelhouse import installable
from harness.matrix.cells import Preset
from harness.matrix.stacks import Stack
from harness.matrix.wheels import size

STAMP = "environment.json"
NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.so")
IMAGE_PYTHON = Path("/opt/venv/bin/python")
IMAGE_PATH = "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
GB = 10**9
PROBE = """
import importlib, importlib.metadata as m, json, sys
missing = []
for name in ("torch", "numpy", "polars", "click"):
    try: importlib.import_module(name)
    except Exception as error: missing.append(f"{name} ({error})")
told = {"missing": missing, "python": sys.version.split()[0]}
if not missing:
    import torch
    told.update(torch=torch.__version__, hip=torch.version.hip, cuda=torch.version.cuda,
                gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
                packages=sorted(f"{d.name}=={d.version}" for d in m.distributions()))
print(json.dumps(told))
"""


# Options by the names that older apps know; every app still takes those.
FORMER_OPTIONS = {"--lookback": "--warm-up", "--check": "--rung", "--inject-fault": "--drill"}


@dataclass(frozen=True)
class Environment:
    """An interpreter with torch and the app, and what decides its behaviour.

    Attributes:
        identity: the inputs that decide the behaviour, for the environment hash.
        image: the id of the image that the interpreter is in; None outside of images.
        version: the version of the interpreter, such as 3.13.5.
        contract: the contract that the app follows.
        option_names: options that the app knows by another name.
        revision: the commit that the image says it was made from.
    """

    python: Path
    identity: dict[str, Any]
    variables: dict[str, str]
    device: Literal["cpu", "cuda"]
    image: str | None = None
    version: str | None = None
    contract: int = OLD_CONTRACT
    option_names: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None

    def app(self, *words: str) -> tuple[str, ...]:
        """Return a command of the app."""
        return (str(self.python), "-m", "vpoc", *(self.option_names.get(word, word) for word in words))

    def hash(self, preset: Preset) -> str:
        """Return the environment hash of a cell: of interpreter, lock, app source and preset."""
        return environment_hash(self.identity, preset)


def environment_hash(identity: dict[str, Any], preset: Preset) -> str:
    """Return the hash of everything that decides the behaviour of a cell."""
    variables = {phase: preset.variables_of(phase) for phase in preset.phases}
    return json_hash({**identity, "preset": variables, "devices": preset.devices})


def app_hash() -> str:
    """Return the identity of the app: its source, and the compiler of its compiled part."""
    return json_hash([app_source_hash(), compiler()])


def app_source_hash() -> str:
    """Return the identity of the app's source alone: only its installation may show whether it can be compiled."""
    return tree_hash(APP, ["pyproject.toml", "vpoc/**/*.py", "vpoc/**/*.c"])


def identify(stack: Stack) -> dict[str, Any] | None:
    """Return the identity of a stack's environment as it would be made now; None if it is unknown.

    An existing environment is identified by its own interpreter. If another interpreter would be used now, the next run
    shows that.
    """
    folder = ENVIRONMENTS / stack.name
    made = _stamp(folder)
    python = folder / "bin" / "python"
    version = made.get("python", stack.python)
    if version not in stack.pythons or not (python.exists() and (folder / "lib" / f"python{version}").is_dir()):
        chosen = choose_python(stack)
        if chosen is None:
            return None
        version, python = chosen
    lock = pins.lock_file(stack, version, made.get("build", "own") if made else "own")
    if not lock.is_file():
        return None
    return {**_identity(python, lock), "app": app_hash()}


def is_made(stack: Stack) -> bool:
    """Return whether a stack's environment is there, and equals the one that would be made now."""
    made = _stamp(ENVIRONMENTS / stack.name)
    chosen = choose_python(stack) if made else None
    return chosen is not None and _is_current(stack, made, *chosen)


def ensure_environment(stack: Stack, notify: Callable[[str], None] = lambda _: None) -> Environment:
    """Return the environment of a stack, and make or update it if necessary.

    It uses the host's own Python if the stack's torch has wheels for it. The cpu stack uses PyPI's build of torch if
    PyTorch's index cannot be reached. `notify` is called before slow steps. While this process lives, nothing removes
    the environment.

    Raises:
        UserError: when the interpreter or a wheel is missing, or the disk has no room.
    """
    keep_in_place()
    version, base = ensure_python(stack, notify)
    folder = ENVIRONMENTS / stack.name
    python = folder / "bin" / "python"
    with locked(folder.with_name(f"{folder.name}.lock"), notify):
        made = _stamp(folder)
        if not _is_current(stack, made, version, base):
            # One of another command, such as a training of days, would lose what it has yet to import.
            wait_for_processes(folder, SHORT_LOCK_SECONDS, notify)
            (folder / STAMP).unlink(missing_ok=True)
            download, disk = stack.budget.download, stack.budget.disk
            what = f"downloads at most {download:g} GB, takes {disk:g} GB of disk and some minutes"
            if REHEARSAL:
                what = "its wheels come from the index on loopback"
            notify(f"making the environment of stack {stack.name}: {what}")
            uv("venv", "--quiet", "--clear", "--python", base, folder)
            lock, build = install_stack(stack, version, python, notify=notify)
            made = {**_identity(base, lock), "python": version, "build": build}
            # A run may take the host down, and what has a stamp is never made again.
            sync_file_system(folder)
            write_json(folder / STAMP, made)
    app = install_app(notify)
    identity = {key: made[key] for key in ("interpreter", "lock")} | {"app": app.name}
    variables = {"PYTHONPATH": str(app)}
    return Environment(python, identity, variables, stack.device, version=_version(folder), contract=CONTRACT)


def _is_current(stack: Stack, made: dict[str, Any], version: str, base: Path) -> bool:
    """Return whether an environment with this stamp equals the one that would be made with this Python."""
    lock = pins.lock_file(stack, version, made.get("build", "own"))
    return lock.is_file() and _identity(base, lock).items() <= made.items()


def install_stack(
    stack: Stack, version: str, python: Path, *more: Path, notify: Callable[[str], None]
) -> tuple[Path, Build]:
    """Install exactly the packages of a stack's lock and of the `more` locks into the environment of `python`.

    `version` is the version of that interpreter, such as 3.13. Return the stack's lock, and the build of torch in it.

    Raises:
        UserError: when a wheel is missing, or the disk has no room.
    """
    try:
        return _sync(stack, version, python, "own", more, notify), "own"
    except UnreachableError as error:
        if stack.accelerator != "cpu":
            raise
        needed = size("pypi")
        _check_room(stack, python, needed.disk)
        notify(
            f"torch {stack.torch} for Python {version}: {stack.index} cannot be reached; using PyPI's build, "
            f"which brings CUDA's libraries ({needed.download} GB to fetch, {needed.disk} GB of disk)"
        )
        try:
            return _sync(stack, version, python, "pypi", more, notify), "pypi"
        except UserError as second:
            kind = type(second) if isinstance(second, UnreachableError) else UserError
            raise kind(f"{str(error).removesuffix(f'; {REACH}')}; then, PyPI's build: {second}") from None


def _sync(
    stack: Stack, version: str, python: Path, build: Build, more: tuple[Path, ...], notify: Callable[[str], None]
) -> Path:
    lock = pins.ensure_lock(stack, python=version, build=build)
    options = ("--quiet", "--require-hashes", "--compile-bytecode", "--python", python)
    with installable(stack, lock, notify) as (wheels, file):
        pins.try_sources(stack, "pip", "sync", *options, *wheels, file, *more, build=build)
    return lock


def _identity(python: Path, lock: Path) -> dict[str, Any]:
    return {"interpreter": file_hash(python.resolve()), "lock": file_hash(lock)}


def _check_room(stack: Stack, python: Path, needed: float) -> None:
    """Refuse PyPI's build of torch if the disk has no room for it.

    Raises:
        UserError: saying how much is needed and how much is free.
    """
    place = python.parent.parent
    free = shutil.disk_usage(place).free / GB
    if free < needed:
        raise NoSpaceError(
            f"stack {stack.name}: {stack.index} cannot be reached, and PyPI's build of torch needs {needed} GB "
            f"in {place}, where {free:.1f} GB are free; free some"
        )


def _version(folder: Path) -> str | None:
    """Return the version of an environment's interpreter, as noted when it was made; None if it was not."""
    with suppress(OSError):
        noted = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
        found = re.search(r"^version(?:_info)? *= *(\S+)", noted, re.MULTILINE)
        return found[1] if found else None
    return None


def image_environment(
    image: str, identity: dict[str, Any], contract: int, stack: Stack, revision: str | None = None
) -> Environment:
    """Return the environment in the image of a cell, which also includes the preset."""
    names = {} if identity.get("app") == app_hash() else FORMER_OPTIONS
    variables = {"PATH": IMAGE_PATH}
    known: dict[str, Any] = {"contract": contract, "option_names": names, "revision": revision}
    return Environment(IMAGE_PYTHON, identity, variables, stack.device, image, **known)


def host_environment(python: Path, notify: Callable[[str], None] = lambda _: None) -> Environment:
    """Return the environment of the user's own interpreter, with the app on its path.

    Raises:
        UserError: when the interpreter cannot run the app.
    """
    python = python.absolute()
    try:
        # Use as bare an environment as runs will have, because what only the caller's shell provides does not count.
        bare = {"PATH": os.defpath, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
        run = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=300, check=True, env=bare)
        told = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(f"--python {python}: does not run: {error}") from None
    if told["missing"]:
        raise UserError(f"--python {python}: lacks {', '.join(told['missing'])}; install them there")
    app = install_app(notify)
    identity = {key: told[key] for key in ("torch", "hip", "cuda")}
    identity |= {"interpreter": file_hash(python.resolve()), "lock": json_hash(told["packages"]), "app": app.name}
    device: Literal["cpu", "cuda"] = "cuda" if told["gpus"] else "cpu"
    variables = {"PYTHONPATH": str(app)}
    return Environment(python, identity, variables, device, version=told["python"], contract=CONTRACT)


def install_app(notify: Callable[[str], None] = lambda _: None) -> Path:
    """Copy the app into a folder named by its hash and return it, so that the app of a run cannot change under it."""
    # Do this first, because the hash of the app depends on whether there is a compiled part.
    ensure_kernel(notify)
    folder = APPS / app_hash()
    if not folder.is_dir():
        APPS.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".app-", suffix=".tmp", dir=APPS))
        shutil.copytree(APP / "vpoc", temporary / "vpoc", ignore=NOT_SOURCE)
        place_kernel(temporary)
        temporary.chmod(0o755)
        # A run may take the host down, and a folder of that name is never made again.
        sync_file_system(temporary)
        # An edit or a `git pull` may have come between the hash and the copy.
        is_named_right = app_hash() == folder.name
        with suppress(OSError):
            # Another process may have been faster; a folder of that name has the same content.
            if is_named_right:
                temporary.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        if not is_named_right:
            return install_app(notify)
    return folder


def _stamp(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
