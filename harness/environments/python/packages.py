"""The packages of the user's own program, besides those of its stack: resolved, locked by hash, and in a folder."""

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.file_system_sync import sync_file_system
from harness.base.files.hashes import file_hash, json_hash
from harness.base.files.locks import locked
from harness.environments.python import pins
from harness.environments.python.programs import PROGRAMS
from harness.environments.python.uv_process import uv
from harness.environments.python.wheelhouse import locked_versions
from harness.matrix.programs import PACKAGES, Program
from harness.matrix.requirements import contradiction
from harness.matrix.stacks import Stack

PLATFORM = "x86_64-manylinux_2_28"
LOCK = "requirements.txt"
# These are built against one build of torch: PyPI's do not load beside another build, but torch's indexes have theirs.
BESIDE_TORCH = re.compile(r"^\s*(torchvision|torchaudio)\b", re.IGNORECASE)
ENTRY = re.compile(r"^[a-z0-9][a-z0-9.-]*==\S")
VIA = re.compile(r"#\s+(?:via )?(-r \S+|[a-z0-9][a-z0-9.-]*)")


def refuse_contradiction(program: Program, stack: Stack) -> None:
    """Refuse requirements that contradict what a stack has, by its lock if that is here.

    Raises:
        UserError: when a line contradicts the stack, naming the line.
    """
    lock = pins.lock_file(stack)
    pinned = locked_versions(lock) if lock.is_file() else {}
    if told := contradiction(program, stack, pinned):
        raise UserError(told)


def ensure_packages(
    program: Program, stack: Stack, python: str | None, notify: Callable[[str], None] = lambda _: None
) -> Path | None:
    """Return the folder with the packages of a program, made if necessary; None if the program asks for none.

    Only wheels are installed, so that no code of the packages runs on this host. `python` is the version that they are
    for.

    Raises:
        UserError: when the packages cannot be installed beside the stack's.
    """
    if program.requirements is None or program.taken is None:
        return None
    version = ".".join((python or stack.python).split(".")[:2])
    own = pins.ensure_lock(stack, python=version)
    source = _source(program, stack)
    key = json_hash([program.taken.requirements, file_hash(own), version, source])[:16]
    folder = PROGRAMS / f"packages-{key}"
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    with locked(PROGRAMS / f".packages-{key}.lock", notify):
        if not (folder / PACKAGES).is_dir():
            notify(f"packages of {program.requirements} for Python {version}")
            with tempfile.TemporaryDirectory(prefix=".packages-", suffix=".tmp", dir=PROGRAMS) as place:
                made = Path(place) / "made"
                made.mkdir()
                _make(program, stack, version, own, made, source)
                shutil.rmtree(folder, ignore_errors=True)
                # A run may take the host down, and a folder of that name is never made again.
                sync_file_system(made)
                made.rename(folder)
    return folder / PACKAGES


def _beside_torch(program: Program) -> bool:
    """Return whether a program asks for packages that are built against one build of torch."""
    return any(map(BESIDE_TORCH.match, program.taken.requirements if program.taken else ()))


def _source(program: Program, stack: Stack) -> list[str]:
    """Return where packages come from, as options of uv: PyPI, or for those built against torch the stack's index."""
    if _beside_torch(program):
        return pins.sources(stack)[-1]
    return ["--default-index", stack.pypi] if stack.pypi else []


def _make(program: Program, stack: Stack, version: str, own: Path, made: Path, source: list[str]) -> None:
    target = ("--python-version", version, "--python-platform", PLATFORM, "--only-binary", ":all:", "--quiet")
    wanted, versions, lock = made / "wanted.in", made / "versions.txt", made / LOCK
    lines = program.taken.requirements if program.taken else ()
    wanted.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    # Without labels, because PyPI has another build of torch, which is not installed; torch's companions need the exact
    # one.
    has = locked_versions(own)
    exact = _beside_torch(program)
    text = "".join(f"{name}=={number if exact else number.partition('+')[0]}\n" for name, number in has.items())
    versions.write_text(text, encoding="utf-8")
    try:
        options = ("--generate-hashes", "--no-header", "--constraint", versions, "-o", lock)
        uv("pip", "compile", *target, *options, wanted, *source)
        lock.write_text(_without(lock.read_text(encoding="utf-8"), has.keys()), encoding="utf-8")
        (made / PACKAGES).mkdir()
        if ENTRY.search(lock.read_text(encoding="utf-8")):
            into = ("--target", made / PACKAGES, "--require-hashes", "--no-deps")
            uv("pip", "install", *target, *into, "-r", lock, *source)
    except UserError as error:
        raise UserError(f"{program.requirements}: cannot be installed beside stack {stack.name}: {error}") from None


def _without(lock: str, names: Collection[str]) -> str:
    """Return a lock without the packages that the stack has, and without what only those ask for."""
    blocks = {block.partition("==")[0]: block for block in _blocks(lock)}
    stack = {name for name in blocks if name in names}
    kept = {name for name, block in blocks.items() if name not in stack and "-r " in block}
    while True:
        more = {
            name for name, block in blocks.items() if name not in stack | kept and kept.intersection(VIA.findall(block))
        }
        if not more:
            return "".join(block for name, block in blocks.items() if name in kept)
        kept |= more


def _blocks(lock: str) -> Iterator[str]:
    block = ""
    for line in lock.splitlines(keepends=True):
        if ENTRY.match(line) and block:
            yield block
            block = ""
        block += line
    if ENTRY.match(block):
        yield block
