"""One virtual environment per stack, for the process executor."""

import fcntl
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness import locks
from harness.errors import UserError
from harness.matrix import Preset, Stack
from harness.paths import APP, ENVIRONMENTS
from harness.storage import file_hash, json_hash, tree_hash, write_json

STAMP = "environment.json"
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


@dataclass(frozen=True)
class Environment:
    """An interpreter with torch and the app, and what decides its behaviour."""

    python: Path
    identity: dict[str, Any]
    variables: dict[str, str]
    device: Literal["cpu", "cuda"]

    def hash(self, preset: Preset) -> str:
        """The environment hash of a cell: interpreter, lock, app source and preset."""
        return environment_hash(self.identity, preset)


def environment_hash(identity: dict[str, Any], preset: Preset) -> str:
    """Hash of what really decides the behaviour of a cell."""
    return json_hash({**identity, "preset": {phase: preset.variables_of(phase) for phase in preset.phases}})


def app_hash() -> str:
    """Identity of the app's source."""
    return tree_hash(APP, ["pyproject.toml", "vpoc/**/*.py"])


def find_python(version: str) -> Path | None:
    """An installed interpreter of a version such as 3.11."""
    try:
        return Path(locks.uv("python", "find", "--no-python-downloads", "--system", version).strip())
    except UserError:
        return None


def identify(stack: Stack) -> dict[str, Any] | None:
    """Identity of a stack's environment as it would be made now; None where that is not known yet."""
    python, lock = find_python(stack.python), locks.lock_file(stack)
    if python is None or not lock.is_file():
        return None
    return {"interpreter": file_hash(python.resolve()), "lock": file_hash(lock), "app": app_hash()}


def ensure_environment(stack: Stack) -> Environment:
    """The environment of a stack, made or brought up to date where needed.

    Raises:
        UserError: when the interpreter or a wheel is missing.
    """
    base = find_python(stack.python)
    if base is None:
        raise UserError(f"stack {stack.name}: {missing_python(stack.python)}")
    lock = locks.ensure_lock(stack)
    folder = ENVIRONMENTS / stack.name
    identity = {"interpreter": file_hash(base.resolve()), "lock": file_hash(lock), "app": app_hash()}
    python = folder / "bin" / "python"
    with _locked(folder):
        made = _stamp(folder)
        if made != identity:
            (folder / STAMP).unlink(missing_ok=True)
            if {**made, "app": identity["app"]} != identity:
                locks.uv("venv", "--quiet", "--clear", "--python", base, folder)
                options = ("--quiet", "--require-hashes", "--compile-bytecode", "--python", python)
                locks.try_sources(stack, "pip", "sync", *options, lock)
            _install_app(python)
            write_json(folder / STAMP, identity)
    return Environment(python, identity, {}, "cuda" if stack.accelerator == "rocm" else "cpu")


def host_environment(python: Path) -> Environment:
    """The user's own interpreter, with the app's source on its path.

    Raises:
        UserError: when it cannot run the app.
    """
    try:
        run = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=300, check=True)
        told = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(f"--python {python}: does not run: {error}") from None
    if told["missing"]:
        raise UserError(f"--python {python}: lacks {', '.join(told['missing'])}; install them there")
    identity = {key: told[key] for key in ("torch", "hip", "cuda")}
    identity |= {"interpreter": file_hash(python.resolve()), "lock": json_hash(told["packages"]), "app": app_hash()}
    return Environment(python, identity, {"PYTHONPATH": str(APP)}, "cuda" if told["gpus"] else "cpu")


def missing_python(version: str) -> str:
    """What to say where an interpreter is missing."""
    return f"Python {version} is not installed; try `.venv/bin/uv python install {version}`"


def _install_app(python: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "flit_core.wheel", "--outdir", folder, str(APP)]
        subprocess.run(build, check=True, capture_output=True)
        wheel = next(Path(folder).glob("*.whl"))
        install = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--reinstall", "--compile-bytecode"]
        locks.uv(*install, "--python", python, wheel)


def _stamp(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
