"""Make the environment that the app's tests run in: the test tools, and the app as it is in the checkout.

With no argument: `.cache/envs/cpu-test`, the cpu stack as locked.
With `jax`: `.cache/envs/jax-test`, the same stack with JAX.
With a version of torch: `.cache/envs/torch-<version>`, a torch that runs on a CPU. PyTorch's own index has a small
build of it; PyPI has a build with CUDA's libraries, which needs no GPU either.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from packaging.version import Version

from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.paths import APP, CACHE, CHECKOUT, ENVIRONMENTS
from harness.environments import environment
from harness.environments.compiled_kernel import place_kernel
from harness.environments.python.interpreters import ensure_python
from harness.environments.python.pins import lock_file, try_sources, wheel_folders
from harness.environments.python.uv_process import uv
from harness.environments.python.wheelhouse import read_lock
from harness.matrix.load import load_matrix
from harness.matrix.stacks import Stack
from harness.matrix.wheels import missing_wheel

TESTS = Path(__file__).parent / "app"
TOOLS = TESTS / "requirements.in"
DEPENDENCIES = APP / "pyproject.toml"
# The Python that the committed locks were resolved for.
LOCKED_PYTHON = "3.11"
JAX_STACK = "cpu-jax0.10.0"
# A function that runs uv with options that say where wheels come from.
Run = Callable[..., object]


def main() -> None:
    """Make the environment; the only possible argument is `jax` or a version of torch."""
    stacks = load_matrix(CHECKOUT / "matrix.yaml").stacks
    stack = stacks["cpu"]
    try:
        if sys.argv[1:] == ["jax"]:
            make(ENVIRONMENTS / "jax-test", stack, partial(install_with_jax, stack, stacks[JAX_STACK]))
        elif sys.argv[1:]:
            [version] = sys.argv[1:]
            problem = missing_wheel(version, None, stack.python)
            if problem:
                raise UserError(problem)
            named = stack.model_copy(update={"name": f"torch-{version}", "torch": version})
            make(ENVIRONMENTS / named.name, named, partial(install_torch, named, version))
        else:
            make(ENVIRONMENTS / "cpu-test", stack, partial(install_stack, stack))
    except UserError as error:
        raise SystemExit(str(error)) from None


def make(folder: Path, stack: Stack, install: Callable[[str, Path], None]) -> None:
    """Create an environment in `folder` with what `install` installs, and with the app, editable."""
    version, base = ensure_python(stack, say)
    uv("venv", "--quiet", "--clear", "--python", base, folder)
    python = folder / "bin" / "python"
    install(version, python)
    uv("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", python, "--editable", APP)
    place_kernel(APP, say)


def install_stack(stack: Stack, version: str, python: Path) -> None:
    """Install the stack and the test tools, as locked."""
    environment.install_stack(stack, version, python, TOOLS.with_suffix(".txt"), notify=say)


def install_with_jax(stack: Stack, jax: Stack, version: str, python: Path) -> None:
    """Install the stack, the test tools and the packages that only JAX's stack has, as locked."""
    install_stack(stack, version, python)
    there = {entry.name for entry in read_lock(lock_file(stack))}
    wanted = CACHE / "locks" / f"{jax.name}-alone.txt"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.write_text("".join(f"{one.text}\n" for one in read_lock(lock_file(jax)) if one.name not in there))
    uv("pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", python, "--requirement", wanted)


def install_torch(stack: Stack, torch: str, version: str, python: Path) -> None:
    """Install a torch that runs on a CPU and what the app and its tests need, from PyTorch's index, else from PyPI."""
    folders = [option for folder in wheel_folders() for option in ("--find-links", folder)]

    def from_pypi(*arguments: str | Path) -> None:
        uv(*arguments, *folders)

    def install(build: str, run: Run) -> None:
        lock = lock_of(build, version, run)
        say(f"torch {build}: installing {lock.relative_to(CHECKOUT)}")
        sync(run, python, lock)

    try:
        install(f"{torch}+cpu", partial(try_sources, stack))
    except UserError as error:
        say(f"torch {torch}+cpu cannot be had, taking PyPI's, which is gigabytes: {error}")
        install(torch, from_pypi)


def say(text: str) -> None:
    """Print a line and flush it."""
    print(text, flush=True)


def lock_of(build: str, python: str, run: Run) -> Path:
    """Return the hash lock of a build of torch: the committed lock, or one that this host resolves from the same pins.

    The committed lock of PyPI's build also fixes all other versions, so that both builds are tried alike.
    """
    committed = TESTS / "locks" / f"torch-{build}.txt"
    if committed.is_file() and python == LOCKED_PYTHON:
        return committed
    pins = f"torch=={build}\n{numpy_of(build)}\n"
    key = json_hash([pins, python, TOOLS.read_text(encoding="utf-8"), DEPENDENCIES.read_text(encoding="utf-8")])
    lock = CACHE / "locks" / f"torch-{build}-{key[:12]}.txt"
    if not lock.is_file():
        lock.parent.mkdir(parents=True, exist_ok=True)
        pinned, unfinished = lock.with_suffix(".in"), lock.with_suffix(".tmp")
        pinned.write_text(pins, encoding="utf-8")
        other = TESTS / "locks" / f"torch-{Version(build).public}.txt"
        same = ("--constraint", other) if other.is_file() else ()
        target = ("--python-version", python, "--python-platform", "x86_64-manylinux_2_28")
        output = ("--quiet", "--generate-hashes", "--no-annotate", "--no-header", "--output-file", unfinished)
        say(f"torch {build}: no lock in tests/app/locks for Python {python}, resolving one")
        run("pip", "compile", *target, *output, *same, pinned, DEPENDENCIES, TOOLS)
        unfinished.replace(lock)
    return lock


def numpy_of(build: str) -> str:
    """Return the numpy for a torch: up to 2.2 it was compiled against numpy 1, which the app supports from 1.26 on."""
    return "numpy==1.26.4" if Version(build).release[:2] <= (2, 2) else "numpy"


def sync(run: Run, python: Path, *locks: Path) -> None:
    """Install exactly what the locks say."""
    run("pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", "--python", python, *locks)


if __name__ == "__main__":
    main()
