"""What a cell runs in: one virtual environment per stack for processes, or the image of the stack."""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from harness.base.errors import UserError
from harness.base.paths import APP, APPS, ENVIRONMENTS
from harness.base.storage import file_hash, json_hash, locked, tree_hash, write_json
from harness.environments import pins
from harness.environments.compiled_kernel import compiler, place_kernel
from harness.matrix.cells import Preset, Stack

STAMP = "environment.json"
NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.so")
IMAGE_PYTHON = Path("/opt/venv/bin/python")
IMAGE_PATH = "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
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
    """An interpreter with torch and the app, and what decides its behaviour. `image` is the one it is in, by id."""

    python: Path
    identity: dict[str, Any]
    variables: dict[str, str]
    device: Literal["cpu", "cuda"]
    image: str | None = None

    def app(self, *words: str) -> tuple[str, ...]:
        """A command of the app."""
        return (str(self.python), "-m", "vpoc", *words)

    def hash(self, preset: Preset) -> str:
        """The environment hash of a cell: interpreter, lock, app source and preset."""
        return environment_hash(self.identity, preset)


def environment_hash(identity: dict[str, Any], preset: Preset) -> str:
    """Hash of what really decides the behaviour of a cell."""
    variables = {phase: preset.variables_of(phase) for phase in preset.phases}
    return json_hash({**identity, "preset": variables, "devices": preset.devices})


def app_hash() -> str:
    """Identity of the app: its source, and what its compiled part is made with."""
    return json_hash([tree_hash(APP, ["pyproject.toml", "vpoc/**/*.py", "vpoc/**/*.c"]), compiler()])


@cache
def find_python(version: str) -> Path | None:
    """An installed interpreter of a version such as 3.11. Looked for once: that takes a quarter of a second."""
    try:
        return Path(pins.uv("python", "find", "--no-python-downloads", "--system", version).strip())
    except UserError:
        return None


def identify(stack: Stack) -> dict[str, Any] | None:
    """Identity of a stack's environment as it would be made now, by the interpreter that it was made from.

    None where that is not known yet. Where another interpreter would be found now, the next run tells.
    """
    python, lock = _python_of(stack) or find_python(stack.python), pins.lock_file(stack)
    if python is None or not lock.is_file():
        return None
    return {"interpreter": file_hash(python.resolve()), "lock": file_hash(lock), "app": app_hash()}


def _python_of(stack: Stack) -> Path | None:
    """The interpreter that its environment was made from, which is known without looking for one."""
    folder = ENVIRONMENTS / stack.name
    python = folder / "bin" / "python"
    return python if python.exists() and (folder / "lib" / f"python{stack.python}").is_dir() else None


def ensure_environment(stack: Stack) -> Environment:
    """The environment of a stack, made or brought up to date where needed.

    Raises:
        UserError: when the interpreter or a wheel is missing.
    """
    base = find_python(stack.python)
    if base is None:
        raise UserError(f"stack {stack.name}: {missing_python(stack.python)}")
    lock = pins.ensure_lock(stack)
    folder = ENVIRONMENTS / stack.name
    identity = {"interpreter": file_hash(base.resolve()), "lock": file_hash(lock)}
    python = folder / "bin" / "python"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if _stamp(folder) != identity:
            (folder / STAMP).unlink(missing_ok=True)
            pins.uv("venv", "--quiet", "--clear", "--python", base, folder)
            options = ("--quiet", "--require-hashes", "--compile-bytecode", "--python", python)
            pins.try_sources(stack, "pip", "sync", *options, lock)
            write_json(folder / STAMP, identity)
    app = install_app()
    return Environment(python, {**identity, "app": app.name}, {"PYTHONPATH": str(app)}, stack.device)


def image_environment(image: str, identity: dict[str, Any], stack: Stack) -> Environment:
    """The environment in the image of a cell; the preset is in it, too."""
    return Environment(IMAGE_PYTHON, identity, {"PATH": IMAGE_PATH}, stack.device, image)


def host_environment(python: Path) -> Environment:
    """The user's own interpreter, with the app on its path.

    Raises:
        UserError: when it cannot run the app.
    """
    python = python.absolute()
    try:
        # In as bare an environment as the runs will have: what only the caller's shell provides does not count.
        bare = {"PATH": os.defpath, "PYTHONNOUSERSITE": "1"}
        run = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=300, check=True, env=bare)
        told = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(f"--python {python}: does not run: {error}") from None
    if told["missing"]:
        raise UserError(f"--python {python}: lacks {', '.join(told['missing'])}; install them there")
    app = install_app()
    identity = {key: told[key] for key in ("torch", "hip", "cuda")}
    identity |= {"interpreter": file_hash(python.resolve()), "lock": json_hash(told["packages"]), "app": app.name}
    return Environment(python, identity, {"PYTHONPATH": str(app)}, "cuda" if told["gpus"] else "cpu")


def install_app() -> Path:
    """A copy of the app in a folder named by its hash: what a run was started with cannot change under it."""
    folder = APPS / app_hash()
    if not folder.is_dir():
        temporary = Path(tempfile.mkdtemp(prefix=".app-", suffix=".tmp", dir=_made(APPS)))
        shutil.copytree(APP / "vpoc", temporary / "vpoc", ignore=NOT_SOURCE)
        place_kernel(temporary)
        temporary.chmod(0o755)
        with suppress(OSError):
            # Somebody else may have been faster; a folder of that name has that content.
            temporary.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _stamp(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / STAMP).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def missing_python(version: str) -> str:
    """What to say where an interpreter is missing."""
    return f"Python {version} is not installed; try `.venv/bin/uv python install {version}`"
