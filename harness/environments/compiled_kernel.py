"""The compiled part of the app: its C sources -> a library, by the compiler that is locked with the harness.

`python -m harness.environments.compiled_kernel` puts it into the checkout, for the app as it is installed from there.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.base.errors import UserError
from harness.base.paths import APP, CACHE
from harness.base.storage import json_hash, locked

PLATFORM = "manylinux_2_17_x86_64"
# Numbers must be those of numpy: no float operations are fused, and integers run over as they do there.
OPTIONS = (
    *("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v2", "-O3", "-ffp-contract=off", "-fwrapv"),
    *("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-s"),
)
FOLDER = Path("vpoc", "kernel")
KERNELS = CACHE / "kernels"
WORDS = 400


def compiler() -> list[str] | None:
    """What a library is made with; None where there is no compiler for this platform, and the app does without."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None
    try:
        return [f"ziglang {version('ziglang')}", *OPTIONS]
    except PackageNotFoundError:
        return None


def place_kernel(app: Path) -> bool:
    """Put the library beside the sources in `app`, a copy of the app's folder or itself, in place of any other.

    Whether there is one. The app knows it by its name, which is of the sources.

    Raises:
        UserError: when it cannot be compiled.
    """
    for old in (app / FOLDER).glob("*.so"):
        old.unlink()
    with_what = compiler()
    if with_what is None:
        return False
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in _sources()))
    name = f"kernel-{digest.hexdigest()[:16]}.so"
    library = KERNELS / f"{json_hash(with_what)[:16]}-{name}"
    with locked(KERNELS / "lock"):
        if not library.is_file():
            _compile(library)
    shutil.copy(library, app / FOLDER / name)
    return True


def _sources() -> list[Path]:
    return sorted((APP / FOLDER).glob("*.c"))


def _compile(library: Path) -> None:
    # What the compiler keeps for next time is of no use: it compiles once.
    with tempfile.TemporaryDirectory(dir=KERNELS) as scratch:
        made = Path(scratch) / library.name
        places = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        # By their names alone: no path may be in the library.
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *OPTIONS,
            "-o",
            made,
            *(file.name for file in _sources()),
        ]
        run = subprocess.run(
            command, cwd=APP / FOLDER, env={**os.environ, **places}, capture_output=True, text=True, check=False
        )
        if run.returncode:
            words = " ".join(run.stderr.split())
            raise UserError(f"{APP / FOLDER}: cannot be compiled: {words[:WORDS]}")
        made.replace(library)


if __name__ == "__main__":
    place_kernel(APP)
