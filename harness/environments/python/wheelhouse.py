"""The wheels of a lock on this host, each verified by its hash and kept, so that a later fetch resumes."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from harness.base.certificates import trusting
from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.files.locks import locked
from harness.base.paths import WHEELS
from harness.environments.python.pins import wheel_folders
from harness.environments.python.source_packages import built_wheel
from harness.matrix.stacks import Stack

# Every platform that a wheel for a glibc 2.28 system may name.
PLATFORMS = (
    *(f"{name}_x86_64" for name in ("linux", "manylinux1", "manylinux2010", "manylinux2014")),
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 29)),
)
# Most times that a broken download of gigabytes is resumed where it broke.
RESUMES = 50
WORDS = 300
PARTIAL = ".fetch-"


@dataclass(frozen=True)
class Locked:
    """One line of a lock: `name==version`, and the hashes that its wheels may have."""

    name: str
    version: str
    hashes: frozenset[str]
    text: str


def read_lock(lock: Path) -> list[Locked]:
    """Return the lines of a hash lock.

    Raises:
        UserError: when a line is not `name==version` with hashes, and would silently be left out.
    """
    text = re.sub(r"^\s*#.*\n", "", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = []
    for line in text.replace("\\\n", " ").splitlines():
        match = re.fullmatch(r"([\w.-]+)==([^\s;]+)((?: +--hash=sha256:\w{64})+) *", line)
        if match:
            hashes = frozenset(re.findall(r"sha256:(\w{64})", match[3]))
            entries.append(Locked(canonicalize_name(match[1]), match[2], hashes, line.strip() + "\n"))
        elif line.strip():
            raise UserError(f"{lock}: {line.strip()[:60]!r} is not `name==version --hash=sha256:...`; resolve it again")
    return entries


def locked_versions(lock: Path) -> dict[str, str]:
    """The versions that a hash lock names, by package; raises as `read_lock`."""
    return {entry.name: entry.version for entry in read_lock(lock)}


def fetch(stack: Stack, lock: Path, notify: Callable[[str], None] = lambda _: None) -> dict[str, Path]:
    """Return the wheels of a lock by name: from the wheelhouse, the user's own folders, or the index.

    Raises:
        UserError: when there is no wheel with a hash of the lock.
    """
    wheels = {}
    with locked(WHEELS / ".lock", notify):
        # Remove what a killed fetch left half-done.
        for left in WHEELS.glob(f"{PARTIAL}*"):
            shutil.rmtree(left)
        # A version has a wheel for every Python, and the lock has the hashes of them all.
        tags = _tags(stack)
        # Let pip download into WHEELS, because /tmp may be small.
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=WHEELS) as place:
            for entry in read_lock(lock):
                wheel = _held(entry, tags)
                if wheel is None:
                    notify(f"fetching {entry.name} {entry.version}")
                    wheel = _built(stack, entry)
                if wheel is None:
                    _download(stack, entry, Path(place))
                    wheel = _held(entry, tags)
                if wheel is None:
                    raise UserError(
                        f"stack {stack.name}: no wheel of {entry.name} {entry.version} has a hash of the lock"
                    )
                wheels[entry.name] = wheel
    return wheels


def requirement(entry: Locked, wheel: Path) -> str:
    """Return the line of a lock that installs exactly this wheel; a wheel built here gets its own hash."""
    # Any other wheel may be in a folder of the user's where somebody has replaced it since its hash was checked.
    if not wheel.is_relative_to(WHEELS / "built"):
        return entry.text
    return f"{entry.name}=={entry.version} --hash=sha256:{file_hash(wheel)}\n"


@contextmanager
def installable(
    stack: Stack, lock: Path, notify: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[list[str | Path], Path]]:
    """Yield options of uv and the lock to install from, with wheels built here in place of source packages.

    Raises:
        UserError: when a source package cannot be fetched or built.
    """
    built = {}
    for entry in read_lock(lock) if stack.origin.built else ():
        if entry.name in stack.origin.built:
            notify(f"building {entry.name} {entry.version} from source")
            built[entry.name] = (entry, _built(stack, entry))
    if not built:
        yield [], lock
        return
    wheels = {name: (entry, wheel) for name, (entry, wheel) in built.items() if wheel}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, lock.name)
        texts = [requirement(*wheels[e.name]) if e.name in wheels else e.text for e in read_lock(lock)]
        file.write_text("".join(texts), encoding="utf-8")
        yield [word for _, wheel in wheels.values() for word in ("--find-links", wheel.parent)], file


def _built(stack: Stack, entry: Locked) -> Path | None:
    """Return the wheel of an entry that its source has only as source; None for any other entry."""
    if entry.name not in stack.origin.built:
        return None
    return built_wheel(stack, entry.name, entry.version, entry.hashes)


def _tags(stack: Stack) -> frozenset[Tag]:
    """Return the tags that wheels for the stack's Python may have."""
    major, minor = (int(part) for part in stack.python.split("."))
    interpreter = f"cp{major}{minor}"
    python = (major, minor)
    return frozenset(
        [
            *cpython_tags(python, abis=[interpreter], platforms=PLATFORMS),
            *compatible_tags(python, interpreter, PLATFORMS),
        ]
    )


def _held(entry: Locked, tags: frozenset[Tag]) -> Path | None:
    """Return an entry's wheel that this host has already, with one of these tags and a known hash; otherwise None."""
    folders = [WHEELS, *(Path(place) for place in wheel_folders())]
    wheels = (wheel for folder in folders for wheel in _wheels_of(entry, tags, folder))
    # Reading a FIFO would block.
    return next((wheel for wheel in wheels if wheel.is_file() and file_hash(wheel) in entry.hashes), None)


def _wheels_of(entry: Locked, tags: frozenset[Tag], folder: Path) -> Iterator[Path]:
    for wheel in sorted(folder.glob("*.whl")):
        try:
            name, version, _, named = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            continue
        if (name, str(version)) == (entry.name, entry.version) and named & tags:
            yield wheel


def _download(stack: Stack, entry: Locked, place: Path) -> None:
    """Fetch a wheel with pip through the folder `place`: from where pip looks by default, then from the stack's index.

    Raises:
        UserError: when pip fails, with its last output.
    """
    python = stack.python.replace(".", "")
    target = ["--python-version", stack.python, "--implementation", "cp"]
    target += [word for abi in (f"cp{python}", "abi3", "none") for word in ("--abi", abi)]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    said: list[str] = []
    lock = place / "lock.txt"
    lock.write_text(entry.text, encoding="utf-8")
    common = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(place)]
    pip = [sys.executable, "-P", "-m", "pip", "download", "--no-input", "--quiet", "--disable-pip-version-check"]
    variables = {**trusting(os.environ), "TMPDIR": str(place)}
    for index in _places(stack, entry):
        command = [*pip, *common, *target, "--resume-retries", str(RESUMES), *index, "-r", str(lock)]
        run = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        if run.returncode == 0:
            # Keep each wheel as soon as it is complete.
            for wheel in place.glob("*.whl"):
                wheel.replace(WHEELS / wheel.name)
            return
        said.append(" ".join(line for line in run.stderr.splitlines() if "WARNING" not in line)[:WORDS])
    raise UserError(f"stack {stack.name}: {entry.name} {entry.version} cannot be fetched: {'; then: '.join(said)}")


def _places(stack: Stack, entry: Locked) -> list[list[str]]:
    """Return the places to look for a wheel, as options of pip, in the order to try."""
    option = "--find-links" if stack.origin.folder else "--index-url"
    own, other = [option, stack.index], (["--index-url", stack.pypi] if stack.pypi else [])
    if stack.torch_from_base:
        return [other]
    if stack.origin.strategy == "first":
        return [own, other]
    # A version with a label, such as 2.9.1+rocm6.3, is only on the stack's own index.
    return [own] if "+" in entry.version else [other, own]
