"""Copies the source of the user's own programs, so that a run can read it while the user goes on editing."""

import errno
import hashlib
import os
import posixpath
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.hashes import file_hash, json_hash
from harness.base.files.storage import create, read_regular
from harness.base.files.tree_removal import opened_folder, remove_below
from harness.base.files.untrusted_file import NotAFileError, OpenFile
from harness.base.files.untrusted_tree import UntrustedTree
from harness.base.paths import CACHE
from harness.base.text import safe_text
from harness.matrix.load import nearest
from harness.matrix.programs import CHECKPOINT, DATA, LINES, SOURCE, STDOUT, Program, ProgramCopy, linear_pattern

PROGRAMS = CACHE / "programs"
# Folders that tools make beside a source, and that no program needs.
TOOLS = {".git", ".venv", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
NOT_SOURCE = frozenset({*TOOLS, "__pycache__", "node_modules"})
MOST_BYTES, MOST_FILES = 512 << 20, 20_000
# Most names of one data folder by links: thirty folders with two links each to the next would have a billion.
MOST_NAMES = 1000
# Most bytes of a requirements file: ten thousand lines.
MOST_REQUIREMENTS_BYTES = 1 << 20
EXECUTABLE = 0o111
PLACEHOLDER = re.compile(r"\{\w+\}")


def take_program(program: Program, where: str) -> Program:
    """Return a program with a copy of its source, hashed with data and requirements; `where` names it in errors.

    Raises:
        UserError: when a part of the program is missing, cannot be read, or is too large.
    """
    if program.progress not in (STDOUT, LINES) and linear_pattern(program.progress) is None:
        raise UserError(
            f"{where}: progress: '{program.progress}' looks around, refers back or repeats too often; remove that"
        )
    if not program.data and any(DATA in word for word in program.command):
        raise UserError(f"{where}: {DATA} in the command is the folder of the data; name it with --data, or `data:`")
    if any(CHECKPOINT in word for word in program.command):
        raise UserError(f"{where}: {CHECKPOINT} goes into --resume-with, or `resume:`; leave it out of the command")
    resume = " ".join(program.resume)
    # Beside it, other braces may be the program's own.
    if CHECKPOINT not in resume and (unknown := PLACEHOLDER.search(resume)):
        raise UserError(f"{where}: {unknown[0]} in --resume-with, or `resume:`, is not known; write {CHECKPOINT}")
    source = Path(program.source)
    if not source.is_dir():
        why = f"is not a folder; give {source.parent}, in which it is" if source.exists() else "no such folder"
        raise NoSuchFileError(f"{where}: {source}: {why}")
    try:
        files, tree = dict(_source_files(source, where)), UntrustedTree(source.resolve())
        if missing := _missing_script(program.command, files):
            scripts = [name for name in files if name.endswith(".py")]
            like = f"; {nearest(missing, scripts)}" if scripts else ""
            raise UserError(f"{where}: {source / missing}: no such file{like}")
        hashes = {name: _source_hash(tree, file) for name, file in files.items()}
        version = [hashes, {Path(place).name: _data_hash(Path(place), where) for place in program.data}]
        lines = _requirements(program, where)
        folder = PROGRAMS / json_hash(hashes)[:16] / SOURCE
        if _content(folder) != hashes:
            _copy(tree, files, folder)
            if _content(folder) != hashes:
                # A file may have been replaced by a link to something that only this user may read.
                remove_copy(folder.parent)
                raise UserError(f"{where}: {source}: was changed while it was copied; run the same command again")
    except RecursionError:
        raise UserError(
            f"{where}: {source}, or its data: folders are nested too deeply, hundreds in one another; remove some"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        name = getattr(error, "filename", None) or source
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise UserError(
                f"{where}: {source}: its folders are nested too deeply to be copied, at {safe_text(name)}; remove or "
                f"shorten them, or move them elsewhere and name them under `data:`"
            ) from None
        raise UserError(f"{where}: {name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    taken = ProgramCopy(folder=str(folder), version=json_hash([*version, lines]), requirements=lines)
    return program.model_copy(update={"taken": taken})


def _requirements(program: Program, where: str) -> tuple[str, ...]:
    """Return the lines of the requirements file; none if the program has no such file."""
    if program.requirements is None:
        return ()
    try:
        listed = read_regular(Path(os.path.realpath(program.requirements)), MOST_REQUIREMENTS_BYTES)
        return tuple(listed.decode().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        named = f"{where}: --requirements, or `requirements:`: {program.requirements}"
        raise UserError(f"{named}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _missing_script(command: Sequence[str], files: Collection[str]) -> str | None:
    """Return the script that a command has Python run, if it is not among the files of the program's source."""
    script = next((word for word in command[1:] if word != "-u"), "")
    plain = command[0].startswith("python") and script.endswith(".py") and not script.startswith(("-", "/", "..", "{"))
    name = posixpath.normpath(script)
    return name if plain and name not in files else None


def changed_source(program: Program) -> tuple[str, ...]:
    """Return the names of files that were changed, added or removed in the copy of a program's source."""
    if program.taken is None:
        return ()
    folder = Path(program.taken.folder)
    found = _content(folder)
    if json_hash(found)[:16] == folder.parent.name:
        return ()
    try:
        tree = UntrustedTree(Path(program.source).resolve())
        own = {name: _source_hash(tree, file) for name, file in _source_files(Path(program.source), "")}
    except (OSError, UserError):
        own = {}
    names = sorted(name for name in {*own, *found} if own.get(name) != found.get(name))
    return tuple(names) or ("something",)


def _source_files(source: Path, where: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a source by name, each with its real path inside the source, without what tools make."""
    size, number, inside = 0, 0, source.resolve()
    for place, folders, names in os.walk(source, onerror=_raise):
        folders[:] = sorted(name for name in folders if name not in NOT_SOURCE)
        for name in folders:
            if (folder := Path(place, name)).is_symlink():
                raise UserError(f"{where}: {folder}: is a link to a folder; name that folder under `data:` instead")
        for name in sorted(names):
            file = Path(place, name)
            # Use os.path.realpath, because Path.resolve raises on a link that leads to itself.
            real = Path(os.path.realpath(file))
            # A folder above the file may have become a link meanwhile.
            if not real.is_relative_to(inside) or (
                file.is_symlink() and NOT_SOURCE & {*real.parts[len(inside.parts) :]}
            ):
                # Refuse it, because a container would then read what only this user may read.
                raise UserError(f"{where}: {file}: is a link out of it; name what it leads to under `data:` instead")
            if not file.is_file():
                raise UserError(f"{where}: {file}: is not a regular file; a source has no others")
            size, number = size + file.stat().st_size, number + 1
            if size > MOST_BYTES or number > MOST_FILES:
                much = f"more than {MOST_BYTES >> 20} MB or {MOST_FILES:,} files"
                raise UserError(
                    f"{where}: {source}: holds {much}, at {file.relative_to(source)}; a source is copied: "
                    "move its data elsewhere and name it under `data:`"
                )
            yield file.relative_to(source).as_posix(), real.relative_to(inside).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _data_hash(place: Path, where: str) -> str:
    if place.is_file():
        return file_hash(place)
    if not place.is_dir():
        raise NoSuchFileError(f"{where}: data: {place}: no such file or folder")
    return json_hash(
        sorted(
            [file.relative_to(place).as_posix(), file_hash(file)]
            for file in _data_files(place, where, Counter())
            if file.is_file()
        )
    )


def _data_files(place: Path, where: str, names: Counter[str], above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in a data folder, also through links to folders, because a program can read through them."""
    here = os.path.realpath(place)
    names[here] += 1
    if names[here] > MOST_NAMES:
        raise UserError(f"{where}: data: {here}: has more than {MOST_NAMES} names by links; remove some of them")
    try:
        inside = [] if here in above else list(place.iterdir())
    except PermissionError:
        # The program runs as this user, so it cannot read the folder either.
        return
    for one in inside:
        if one.is_dir():
            yield from _data_files(one, where, names, above | {here})
        else:
            yield one


@contextmanager
def _opened(tree: UntrustedTree, name: str) -> Iterator[OpenFile]:
    """Open a file of a source without following a link that has replaced it since it was checked."""
    try:
        with tree.open(name, MOST_BYTES) as file:
            yield file
    except NotAFileError as error:
        raise UserError(f"{tree.path / name}: {error}") from None


def _source_hash(tree: UntrustedTree, name: str) -> str:
    """Return the hash of a file, with a mark if the file is executable."""
    digest = hashlib.sha256()
    with _opened(tree, name) as file:
        for part in file.pieces(MOST_BYTES):
            digest.update(part)
        return f"{digest.hexdigest()}{' x' if file.mode & EXECUTABLE else ''}"


def _content(folder: Path) -> dict[str, str]:
    """Return the hash of each file in a copy; empty if there is no copy. Stop beyond the limits of a source.

    A run as a process may have put a FIFO or an endless file there; such files get an empty hash.
    """
    found: dict[str, str] = {}
    left = MOST_BYTES
    # The walk recurses before Python 3.12, and the run may have nested a thousand folders there.
    with suppress(RecursionError):
        for place, _, names in os.walk(folder):
            for file in (Path(place, name) for name in names):
                name = file.relative_to(folder).as_posix()
                if len(found) > MOST_FILES:
                    return found
                status = file.lstat()
                sound = stat.S_ISREG(status.st_mode) and status.st_size <= left
                found[name] = ""
                # The run may also have removed the right to read a file, or put a link in place of the folder.
                with suppress(OSError, UserError):
                    found[name] = _source_hash(UntrustedTree(folder), name) if sound else ""
                left -= status.st_size if sound else 0
    return found


def _copy(tree: UntrustedTree, files: dict[str, str], folder: Path) -> None:
    """Copy files into a read-only folder."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".program-", suffix=".tmp", dir=PROGRAMS))
    try:
        copy = temporary / SOURCE
        copy.mkdir()
        for name, file in files.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            with _opened(tree, file) as there, create(copy / name) as stream:
                stream.writelines(there.pieces(MOST_BYTES))
                os.fchmod(stream.fileno(), there.mode & 0o777)
        for place, _, names in os.walk(copy, topdown=False):
            for name in names:
                Path(place, name).chmod(0o555 if Path(place, name).stat().st_mode & EXECUTABLE else 0o444)
            Path(place).chmod(0o555)
        temporary.chmod(0o755)
        # Remove an old copy, because a run has changed it.
        remove_copy(folder.parent)
        with suppress(OSError):
            # Another process may have been faster; a folder of that name has the same content.
            temporary.rename(folder.parent)
    finally:
        remove_copy(temporary)


def remove_copy(folder: Path) -> str | None:
    """Remove a copy, whose folders are read-only and which a run may have changed; return why it stays, or None."""
    # The folder of all copies may be a link to another disk.
    with opened_folder(folder.parent.resolve()) as parent:
        return remove_below(parent, folder.name)
