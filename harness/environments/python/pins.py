"""Resolves pins into hash locks that say exactly what is installed for a stack: one lock per Python."""

import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from harness.base.errors import NoAnswerError, UserError
from harness.base.files.hashes import file_hash, json_hash
from harness.base.files.locks import locked
from harness.base.files.storage import copy_durably, write_durably, write_json
from harness.base.paths import CACHE, LOCKS
from harness.base.silent_hosts import note_silent, said_of_silent
from harness.environments.python.uv_process import CONFIG, uv
from harness.matrix.stacks import Stack

# `own` is the build that the pins name, on PyTorch's index or held locally. `pypi` is PyPI's build of the same version,
# which brings CUDA's libraries but also runs on a CPU: it is used if PyTorch's index cannot be reached.
Build = Literal["own", "pypi"]
# The tools that build the source packages of a stack, with hashes.
BUILD_TOOLS = Path(__file__).with_name("build_tools.txt")
# Text of uv's error if an index does not answer.
UNREACHABLE = "Failed to fetch"
# Matches errors of hosts that take no connection or stay silent; a connection that breaks off may work if retried.
SILENT = re.compile(r"client error \(Connect\)(?!.* certificate)|error sending request.* timed out")
# Text of uv's error if no index has everything that is wanted.
LACKS = "No solution found"


REACH = "check the network, set HTTPS_PROXY behind a proxy, or name a mirror: `matrix --index SOURCE=URL`"


class UnreachableError(NoAnswerError):
    """The index with a stack's wheels cannot be reached."""


def wheel_folders() -> list[str]:
    """Return the folders of wheels that the user configured for pip or uv (`PIP_FIND_LINKS`, `UV_FIND_LINKS`)."""
    configured = os.environ.get("UV_FIND_LINKS", "").split(",") + os.environ.get("PIP_FIND_LINKS", "").split()
    return [place for place in configured if place]


def sources(stack: Stack, build: Build = "own") -> list[list[str]]:
    """Return the sources of wheels, as options of uv, in the order to try.

    Wheels that the user has locally come first, so that an unreachable index is no obstacle. Hashes decide which file
    is used, so a mix of PyPI and the PyTorch index cannot bring in another package of the same name. If ROCm comes as
    packages as well, none of them is searched on PyPI before the stack's source was asked. With torch in the base
    image, PyPI is the only source.
    """
    pypi = ["--default-index", stack.pypi] if stack.pypi else []
    if build == "pypi" or stack.torch_from_base:
        return [pypi]
    local = [option for folder in wheel_folders() for option in ("--find-links", folder)]
    if stack.origin.strategy == "first":
        return [[*local, CONFIG, str(_configuration(stack))]]
    index = ["--find-links" if stack.origin.folder else "--index", stack.index, "--index-strategy", "unsafe-best-match"]
    return [[*local, *pypi], [*local, *index, *pypi]] if local else [[*index, *pypi]]


def _configuration(stack: Stack) -> Path:
    """Write uv's configuration for a source whose index refuses packages that it does not have; return the file."""
    text = f"[[index]]\nurl = {json.dumps(stack.index)}\nignore-error-codes = {list(stack.origin.refuses)}\n"
    if stack.pypi:
        text += f"[[index]]\nurl = {json.dumps(stack.pypi)}\ndefault = true\n"
    # One folder per user, because a URL may hold a password, and other users of this checkout may need the same file.
    file = CACHE / f"uv-{os.geteuid()}" / f"{json_hash(text)[:12]}.toml"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        write_durably(file, text.encode())
    return file


def pins_file(stack: Stack) -> Path:
    """Return the file that names the versions of a stack."""
    return LOCKS / f"{stack.name}.in"


def lock_name(stack: Stack, python: str | None = None, build: Build = "own") -> str:
    """Return the name of a stack's lock: `cpu` for its own Python, `cpu-py3.13` for another.

    It includes the GPU targets if the stack has packages for each target: `rocm7.14-torch2.14.0-gfx1100`. The lock of
    PyPI's build, `cpu-pypi`, holds hashes for every Python.
    """
    if build == "pypi":
        return f"{stack.name}-pypi"
    of_python = () if python in (None, stack.python) else (f"py{python}",)
    return "-".join((stack.name, *stack.targets, *of_python))


def lock_file(stack: Stack, python: str | None = None, build: Build = "own") -> Path:
    """Return the hash lock of a stack for a Python: the committed one, or one resolved here from the same pins."""
    name = lock_name(stack, python, build)
    committed = LOCKS / f"{name}.txt"
    if committed.is_file():
        return committed
    like = _lock_to_follow(stack, name)
    key = json_hash([pins_hash(stack), file_hash(like)]) if like else pins_hash(stack)
    return CACHE / "locks" / f"{name}-{key[:12]}.txt"


def _lock_to_follow(stack: Stack, name: str) -> Path | None:
    """Return the committed lock whose versions another Python's adopts, so that they differ as little as can be."""
    committed = LOCKS / f"{lock_name(stack)}.txt"
    return committed if name != committed.stem and committed.is_file() else None


def pins_hash(stack: Stack) -> str:
    """Return the identity of the versions that a stack names, and of the packages for its GPU targets."""
    pins = pins_file(stack)
    if not pins.is_file():
        return "none"
    if not stack.targets:
        return file_hash(pins)
    return json_hash([_with_device_code(stack, pins.read_text(encoding="utf-8")), _override(stack)])


def provenance(lock: Path) -> dict[str, Any]:
    """Return when and where a lock was made, and the digest of the base image; empty if nothing was noted."""
    try:
        return dict(json.loads(lock.with_suffix(".json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def base_digest(stack: Stack) -> str | None:
    """Return the digest that the stack's base image had when the lock was made; None if none was resolved."""
    if "@" in stack.base:
        return stack.base.partition("@")[2]
    lock = lock_file(stack)
    noted = provenance(lock)
    fits = noted.get("base") == stack.base and lock.is_file() and noted.get("lock") == file_hash(lock)
    return noted.get("base_digest") if fits else None


def ensure_lock(stack: Stack, digest: str | None = None, python: str | None = None, build: Build = "own") -> Path:
    """Return the hash lock of a stack, resolving it now if there is none; `digest` is its base's, to be noted.

    Raises:
        UserError: when the wheel index cannot be reached, or lacks a wheel.
    """
    lock = lock_file(stack, python, build)
    if not lock.is_file():
        with _one_at_a_time(lock):
            # Another command may have made it meanwhile.
            if not lock.is_file():
                _make_lock(stack, lock, digest, python, build)
    return lock


def make_lock(
    stack: Stack, lock: Path, digest: str | None = None, python: str | None = None, build: Build = "own"
) -> Path:
    """Resolve the pins of a stack into `lock`, and note the time, the host, and the base's digest in a file beside it.

    Raises:
        UserError: when the wheel index cannot be reached, or lacks a wheel.
    """
    with _one_at_a_time(lock):
        return _make_lock(stack, lock, digest, python, build)


def _one_at_a_time(lock: Path) -> AbstractContextManager[None]:
    """Let one command at a time make a lock: two would write to one temporary file."""
    # The folder of committed locks has nothing but pins and locks.
    return locked(CACHE / "locks" / f"{lock.stem}.lock")


def _make_lock(stack: Stack, lock: Path, digest: str | None, python: str | None, build: Build) -> Path:
    lock.parent.mkdir(parents=True, exist_ok=True)
    temporary = lock.with_suffix(".tmp")
    target = ["--python-version", python or stack.python, "--python-platform", "x86_64-manylinux_2_28"]
    if build == "pypi":
        target = ["--python-version", stack.python, "--universal"]
    output = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", "-o", str(temporary)]
    if not stack.origin.built:
        # Forbid source packages, because resolving one runs its code on this host.
        output += ["--only-binary", ":all:"]
    if stack.torch_from_base:
        # Leave out numpy, because the base image has the numpy that its torch was built with.
        output += ["--no-emit-package", "numpy"]
    try:
        with _wanted(stack, lock_name(stack, python, build), build) as wanted:
            try_sources(stack, "pip", "compile", *target, *output, *wanted, build=build)
        if stack.origin.folder and build == "own":
            _add_hashes(stack, temporary, python or stack.python)
        note = {"schema": 2, "stack": stack.name, "made": time.time(), "host": platform.node(), "base": stack.base}
        note |= {"base_digest": digest, "pins": pins_hash(stack), "lock": file_hash(temporary)}
        note |= {"index": stack.shown_index, "targets": stack.targets} if build == "own" else {}
        write_json(lock.with_suffix(".json"), note)
        copy_durably(temporary, lock)
    finally:
        temporary.unlink(missing_ok=True)
    return lock


def _add_hashes(stack: Stack, lock: Path, python: str) -> None:
    """Add the hash of its file to every line without one, because a page that only lists files gives uv no hashes.

    Raises:
        UserError: when a file cannot be read, or does not exist.
    """
    # Import here, because it is slow, and most locks have all hashes.
    from harness.environments.python.index_pages import download, files_of  # noqa: PLC0415

    text = lock.read_text(encoding="utf-8")
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)$", text, re.MULTILINE):
        tags = (f"cp{python.replace('.', '')}-", "py3-")
        files = [(file, url) for file, url in files_of(stack, name, version) if any(f"-{tag}" in file for tag in tags)]
        if not files:
            raise UserError(f"stack {stack.name}: {stack.shown_index} has no wheel of {name} {version} for {python}")
        with tempfile.TemporaryDirectory(dir=lock.parent) as place:
            digests = [download(url, Path(place, file)) for file, url in files]
        hashes = " \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(digests))
        text = text.replace(f"{name}=={version}\n", f"{name}=={version} \\\n{hashes}\n")
    lock.write_text(text, encoding="utf-8")


@contextmanager
def _wanted(stack: Stack, name: str, build: Build) -> Iterator[list[str | Path]]:
    """Yield the arguments of uv for what to resolve: the pins, and the versions of the lock to follow."""
    pins, like = pins_file(stack), _lock_to_follow(stack, name)
    with tempfile.TemporaryDirectory() as place:
        if build == "pypi":
            # Remove the label such as +cpu, which only builds on PyTorch's own index have.
            text = re.sub(r"^(torch==[^+\s]+)\+\S+", r"\1", pins.read_text(encoding="utf-8"), flags=re.MULTILINE)
            pins = Path(place, "pins.in")
            pins.write_text(text, encoding="utf-8")
        elif stack.targets:
            pins = Path(place, "pins.in")
            pins.write_text(_with_device_code(stack, pins_file(stack).read_text(encoding="utf-8")), encoding="utf-8")
        arguments: list[str | Path] = [pins]
        if stack.targets and build == "own":
            arguments += ["--build-constraints", BUILD_TOOLS]
            if text := _override(stack):
                override = Path(place, "override.txt")
                override.write_text(text, encoding="utf-8")
                arguments += ["--override", override]
        if like:
            versions = re.findall(r"^(?!torch==)[a-z0-9-]+==\S+", like.read_text(encoding="utf-8"), re.MULTILINE)
            constraints = Path(place, "versions.txt")
            constraints.write_text("\n".join(versions) + "\n", encoding="utf-8")
            arguments += ["--constraint", constraints]
        yield arguments


def _with_device_code(stack: Stack, text: str) -> str:
    """Return pins with the packages for the stack's GPU targets added."""
    if stack.origin.extra_of == "torch":
        text = re.sub(r"^torch==", f"torch[{_extras(stack)}]==", text, flags=re.MULTILINE)
    return text + "".join(f"{requirement}\n" for requirement in stack.beside)


def _override(stack: Stack) -> str:
    """Return the requirement that replaces torch's own on the device code of every GPU; empty where there is none."""
    return f"rocm[libraries,{_extras(stack)}]=={stack.rocm}.*\n" if stack.origin.extra_of == "rocm" else ""


def _extras(stack: Stack) -> str:
    return ",".join(f"device-{target}" for target in stack.targets)


def try_sources(stack: Stack, *arguments: str | Path, build: Build = "own") -> None:
    """Run uv with one source of wheels after the other until it succeeds.

    Raises:
        UnreachableError: when the last source does not answer.
        UserError: when all sources fail, with what each of them said.
    """
    said = []
    for options in sources(stack, build):
        # A configuration file names the stack's index.
        urls = (*options, *([stack.index] if CONFIG in options else []))
        if silent := next(filter(None, map(said_of_silent, map(_host, urls))), None):
            said.append(silent)
            continue
        try:
            uv(*arguments, *options)
        except NoAnswerError as error:
            silent = f"{UNREACHABLE}: {stack.shown_index} cause: {error}"
            said.append(silent)
            # Mark every host as silent: any of them may be, and each attempt takes minutes, or half an hour.
            for host in filter(None, map(_host, urls)):
                note_silent(host, silent)
            break
        except UserError as error:
            said.append(str(error))
        else:
            return
    if UNREACHABLE in said[-1]:
        place, *causes = said[-1].partition(UNREACHABLE)[2].removeprefix(": ").split(" cause: ")
        if not silent and SILENT.search(said[-1]):
            note_silent(_host(place.strip("`")), said[-1])
        # Drop what PyPI alone lacks, because the rest was to come from the index. Other errors, such as a wrong hash,
        # are kept.
        before = "".join(f"{one}; then, " for one in said[:-1] if LACKS not in one and UNREACHABLE not in one)
        raise UnreachableError(
            f"stack {stack.name}: {before}{place} does not answer{f': {causes[-1]}' if causes else ''}; {REACH}"
        )
    raise UserError(f"stack {stack.name}: {'; then, with the PyTorch index: '.join(said)}")


def _host(url: str) -> str:
    """Return the host and port of a URL; empty if the text is no URL."""
    return urlsplit(url).netloc.rpartition("@")[2]
