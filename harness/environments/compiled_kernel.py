"""The compiled part of the app: a library made from C sources by a compiler that is fetched against a hash lock.

The compiler is large and needed only once, so it is not kept. If it cannot be fetched, the app works without the
library. `python -m harness.environments.compiled_kernel` puts the library into the checkout for the app that is
installed from there, and retries a fetch that failed before.
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

from harness.base.certificates import trusting
from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.files.locks import locked
from harness.base.files.storage import write_durably
from harness.base.paths import APP, CACHE, CHECKOUT

LOCK = CHECKOUT / "requirements-compiler.txt"
PLATFORM = "manylinux_2_17_x86_64"
# Results must equal those of numpy, so no float operations are fused, and integers wrap around.
OPTIONS = (
    *("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v2", "-O3", "-ffp-contract=off", "-fwrapv"),
    *("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-s"),
)
FOLDER = Path("vpoc", "kernel")
KERNELS = CACHE / "kernels"
# Ending of the file that a failed fetch leaves in KERNELS.
REFUSED = ".refused"
TEMPORARY = ".compiler-"
WORDS = 400


def compiler() -> list[str] | None:
    """Return the compiler and options that make the library; None if there is no compiler and the app works without."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None
    pinned = re.search(r"^ziglang==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    words = [f"ziglang {pinned[1]}", *OPTIONS] if pinned else None
    return None if words is None or _refusal(words).is_file() else words


def ensure_kernel(notify: Callable[[str], None] = lambda _: None) -> Path | None:
    """Return the library, compiling it if necessary; None if there is no compiler.

    A failed fetch of the compiler is noted and not repeated, so that an environment keeps what it has.

    Raises:
        UserError: when the sources cannot be compiled.
    """
    with_what = compiler()
    if with_what is None:
        return None
    library = KERNELS / f"{json_hash(with_what)[:16]}-{_name()}"
    with locked(KERNELS / "lock", notify):
        if not library.is_file():
            # Remove what a killed command left: a compiler has hundreds of megabytes.
            for left in KERNELS.glob(f"{TEMPORARY}*"):
                shutil.rmtree(left, ignore_errors=True)
            notify("compiling the app's kernel: downloads a compiler of 100 MB, takes some minutes")
            try:
                with fetched_compiler() as program:
                    _compile(program, library)
            except CompilerMissingError as error:
                write_durably(_refusal(with_what), f"{error}\n".encode())
                notify(f"{error}; the app works without it, more slowly; `make kernel` tries again")
                return None
    return library


def place_kernel(app: Path, notify: Callable[[str], None] = lambda _: None) -> bool:
    """Put the library beside the sources in `app`, in place of any other; return whether there is a library.

    `app` is the app's folder or a copy of it. The app finds the library by its name, which is a hash of the sources.

    Raises:
        UserError: when the library cannot be compiled.
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
    """Fetch the compiler as locked, yield its program, and remove it at the end.

    Raises:
        CompilerMissingError: when the fetch fails, with the last output of pip.
    """
    KERNELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=KERNELS) as place:
        command = [sys.executable, "-P", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--retries", "2"]
        command += ["--target", f"{place}/compiler", "--requirement", str(LOCK)]
        # Let pip unpack there, because /tmp may be small.
        variables = {**trusting(os.environ), "TMPDIR": place}
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        program = Path(place, "compiler", "ziglang", "zig")
        if run.returncode or not program.is_file():
            words = " ".join(run.stderr.split())
            raise CompilerMissingError(f"the compiler of the app's kernel cannot be fetched: {words[-WORDS:]}")
        yield program


def try_again() -> None:
    """Forget that compilers could not be fetched."""
    for noted in KERNELS.glob(f"*{REFUSED}"):
        noted.unlink()


def _refusal(words: list[str]) -> Path:
    """Return the file that says why this compiler could not be fetched."""
    return KERNELS / f"{json_hash(words)[:16]}{REFUSED}"


def _name() -> str:
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in _sources()))
    return f"kernel-{digest.hexdigest()[:16]}.so"


def _sources() -> list[Path]:
    return sorted((APP / FOLDER).glob("*.c"))


def _compile(program: Path, library: Path) -> None:
    # The compiler's caches are of no use later, because it compiles only once.
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=KERNELS) as scratch:
        made = Path(scratch) / library.name
        places = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        # Pass the sources by name only, because the library must contain no path.
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
