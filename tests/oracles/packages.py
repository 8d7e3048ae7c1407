"""AMD's programs, as Debian and PyPI have them, in folders of their own: nothing is installed on the host."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from harness.base.files.hashes import json_hash
from harness.base.files.locks import locked
from harness.base.paths import CACHE

PLACE = CACHE / "oracles"
SUITE = "sid"
PACKAGES = ("rocminfo", "amd-smi", "hipcc", "libamdhip64-dev", "linux-libc-dev", "libdrm-dev")
JAX = "0.10.2"
WHEELS = (f"jax=={JAX}", f"jaxlib=={JAX}", f"jax-rocm7-plugin=={JAX}", f"jax-rocm7-pjrt=={JAX}")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
WORDS = 300
# apt keeps lists and packages in this folder and sees no installed packages, so it fetches all dependencies.
APT = """Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "{place}/none";
Dir::State::lists "{place}/lists";
Dir::State::status "{place}/status";
Dir::Cache "{place}/cache";
APT::Sandbox::User "";
APT::Architecture "amd64";
APT::Install-Recommends "false";
Acquire::Languages "none";
"""


class UnavailableError(Exception):
    """Raised with the reason when packages cannot be fetched here."""


def debian_root() -> Path:
    """Return a folder with Debian's packages unpacked in it, which are fetched if they are missing.

    Raises:
        UnavailableError: if they cannot be fetched.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg") and platform.machine() == "x86_64"):
        raise UnavailableError(
            "AMD's programs come as packages of Debian for x86-64; here is no apt-get and dpkg for them"
        )
    root = PLACE / f"debian-{json_hash([SUITE, PACKAGES])[:16]}"
    PLACE.mkdir(parents=True, exist_ok=True)
    with locked(PLACE / "lock"):
        if not root.is_dir():
            made = root.with_suffix(".part")
            shutil.rmtree(made, ignore_errors=True)
            _fetch(made)
            made.rename(root)
    return root / "root"


def jax_python() -> Path:
    """Return the interpreter of an environment with JAX and its plugin for ROCm, which are fetched if missing.

    Raises:
        UnavailableError: if they cannot be fetched.
    """
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    place = PLACE / f"jax-{json_hash([version, WHEELS])[:16]}"
    PLACE.mkdir(parents=True, exist_ok=True)
    with locked(PLACE / "lock"):
        if not (place / "ready").is_file():
            _run([sys.executable, "-m", "venv", "--clear", str(place)])
            _run([f"{place}/bin/python", "-m", "pip", "install", "-q", "--only-binary", ":all:", *WHEELS])
            (place / "ready").touch()
    return place / "bin/python"


def _fetch(place: Path) -> None:
    for folder in ("none", "lists/partial", "cache/archives/partial", "root"):
        (place / folder).mkdir(parents=True)
    (place / "status").touch()
    (place / "apt.conf").write_text(APT.format(place=place), encoding="utf-8")
    (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_archive()} {SUITE} main\n", encoding="utf-8")
    own = {"APT_CONFIG": str(place / "apt.conf")}
    _run(["apt-get", "-qq", "update"], **own)
    _run(["apt-get", "-qq", "install", "--download-only", "--yes", *PACKAGES], **own)
    for package in sorted((place / "cache/archives").glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(place / "root")])
    for name in ("lib", "lib64"):
        # The links that an installed system has; the linker is given paths through them.
        if not (place / "root" / name).exists():
            (place / "root" / name).symlink_to(Path("usr", name))
    shutil.rmtree(place / "cache")
    shutil.rmtree(place / "lists")


def _archive() -> str:
    """Return the archive of Debian from which this host installs packages."""
    known = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).split()
    debian = [uri for uri in known if uri.rstrip("/").endswith("/debian")]
    if not debian or not Path(KEYRING).is_file():
        raise UnavailableError("AMD's programs come as packages of Debian, and this host is no Debian")
    return debian[0]


def _run(command: list[str], **variables: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    if run.returncode:
        raise UnavailableError(f"{' '.join(command[:3])}: {' '.join(run.stderr.split())[-WORDS:]}")
    return run.stdout
