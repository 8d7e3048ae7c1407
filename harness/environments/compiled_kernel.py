"""The compiled part of the app: its C sources -> a library, by a compiler that is fetched for it against a hash lock.

The compiler is large and needed once, so it is not kept. Where it cannot be fetched the app does without.
`python -m harness.environments.compiled_kernel` puts the library into the checkout, for the app as it is installed from
there, and tries again what could not be fetched before.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.storage import json_hash, locked, write_durably
from harness.base.paths import APP, CACHE, CHECKOUT

LOCK = CHECKOUT / "requirements-compiler.txt"
PLATFORM = "manylinux_2_17_x86_64"
# Numbers must be those of numpy: no float operations are fused, and integers run over as they do there.
OPTIONS = (
    *("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v2", "-O3", "-ffp-contract=off", "-fwrapv"),
    *("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-s"),
)
FOLDER = Path("vpoc", "kernel")
KERNELS = CACHE / "kernels"
# What a fetch that failed leaves there.
REFUSED = ".refused"
WORDS = 400


def compiler() -> list[str] | None:
    """Return what a library is made with; None where there is no compiler, and the app does without."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None
    pinned = re.search(r"^ziglang==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    words = [f"ziglang {pinned[1]}", *OPTIONS] if pinned else None
    return None if words is None or _refusal(words).is_file() else words


def ensure_kernel(notify: Callable[[str], None] = lambda _: None) -> Path | None:
    """Return the library, compiled where it was not yet; None where there is no compiler.

    Where the compiler cannot be fetched that is noted, and not tried again: an environment keeps what it has.

    Raises:
        UserError: when the sources cannot be compiled.
    """
    with_what = compiler()
    if with_what is None:
        return None
    library = KERNELS / f"{json_hash(with_what)[:16]}-{_name()}"
    with locked(KERNELS / "lock", notify):
        if not library.is_file():
            notify("compiling the app's kernel, with a compiler of 100 MB that is fetched for it, a minute or a few")
            try:
                with fetched_compiler() as program:
                    _compile(program, library)
            except CompilerMissingError as error:
                write_durably(_refusal(with_what), f"{error}\n".encode())
                notify(f"{error}; the app works without, more slowly; `make kernel` tries again")
                return None
    return library


def place_kernel(app: Path, notify: Callable[[str], None] = lambda _: None) -> bool:
    """Put the library beside the sources in `app`, a copy of the app's folder or itself, in place of any other.

    Return True where there is one. The app knows it by its name, which is of the sources.

    Raises:
        UserError: when it cannot be compiled.
    """
    for old in (app / FOLDER).glob("*.so"):
        old.unlink()
    library = ensure_kernel(notify)
    if library:
        shutil.copy(library, app / FOLDER / _name())
    return library is not None


class CompilerMissingError(UserError):
    """The compiler cannot be fetched."""


@contextmanager
def fetched_compiler() -> Iterator[Path]:
    """Fetch the compiler as locked, and yield its program; it is removed at the end.

    Raises:
        CompilerMissingError: with what pip said last.
    """
    KERNELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compiler-", dir=KERNELS) as place:
        command = [sys.executable, "-P", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--retries", "2"]
        command += ["--target", f"{place}/compiler", "--requirement", str(LOCK)]
        # pip unpacks there first, and /tmp may be small.
        variables = {**os.environ, "TMPDIR": place}
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        program = Path(place, "compiler", "ziglang", "zig")
        if run.returncode or not program.is_file():
            words = " ".join(run.stderr.split())
            raise CompilerMissingError(f"the compiler of the app's kernel cannot be fetched: {words[-WORDS:]}")
        yield program


def try_again() -> None:
    """Forget that a compiler could not be fetched."""
    for noted in KERNELS.glob(f"*{REFUSED}"):
        noted.unlink()


def _refusal(words: list[str]) -> Path:
    """The file that says why this compiler could not be fetched."""
    return KERNELS / f"{json_hash(words)[:16]}{REFUSED}"


def _name() -> str:
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in _sources()))
    return f"kernel-{digest.hexdigest()[:16]}.so"


def _sources() -> list[Path]:
    return sorted((APP / FOLDER).glob("*.c"))


def _compile(program: Path, library: Path) -> None:
    # What the compiler keeps for next time is of no use: it compiles once.
    with tempfile.TemporaryDirectory(dir=KERNELS) as scratch:
        made = Path(scratch) / library.name
        places = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        # By their names alone: no path may be in the library.
        command: list[str | Path] = [program, "cc", *OPTIONS, "-o", made, *(file.name for file in _sources())]
        run = subprocess.run(
            command, cwd=APP / FOLDER, env={**os.environ, **places}, capture_output=True, text=True, check=False
        )
        if run.returncode:
            words = " ".join(run.stderr.split())
            raise UserError(f"{APP / FOLDER}: cannot be compiled: {words[:WORDS]}")
        made.replace(library)


def place_in_checkout() -> None:
    """Put the library into the checkout."""
    try_again()
    try:
        place_kernel(APP, print)
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    place_in_checkout()
