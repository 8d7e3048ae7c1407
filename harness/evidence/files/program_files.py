"""The files that a program of the user's own wrote where it works, and how a run takes those of an earlier one over."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from harness.base.errors import UserError
from harness.base.files.storage import remedy_for
from harness.base.files.untrusted_tree import NotAFileError
from harness.base.text import is_text
from harness.evidence.files.work_folder import WorkFolder

MOST_FILES = 100_000


@dataclass(frozen=True)
class Written:
    """A file that a program wrote, by its name where it works. `changed`: seconds since 1970, by this host's clock."""

    name: str
    changed: float


@dataclass(frozen=True)
class TakenOver:
    """The place in which a run of a program works on where an earlier one, in `work`, has stopped.

    `checkpoint`: the newest file or folder there that it can resume from, None where there is none. `left_out`: files
    and folders there that it must not resume from.
    """

    work: WorkFolder
    checkpoint: str | None
    left_out: tuple[str, ...] = ()


def written_files(work: WorkFolder) -> tuple[Written, ...]:
    """Return the files that a program wrote, without links, in no order.

    Raises:
        FileNotFoundError: when there is no place where it works.
        NotAFileError: when a folder cannot be read, or there are too many files.
    """
    found = []
    for one in work.tree.files(WorkFolder.PROGRAM):
        found.append(Written(one.name, one.changed))
        if len(found) > MOST_FILES:
            raise NotAFileError(f"holds more than {MOST_FILES} files")
    return tuple(found)


def checkpoints(work: WorkFolder, pattern: str | None) -> tuple[str, ...]:
    """Return the files and folders that match a pattern, the newest last; without a pattern the newest file alone.

    A folder is as new as its newest file. Nothing where the place cannot be read; a name that is no text, which no
    command or record could repeat, matches none.
    """
    try:
        files = written_files(work)
    except (FileNotFoundError, NotAFileError):
        return ()
    if pattern is None:
        newest = max(files, key=lambda one: (one.changed, one.name), default=None)
        return (newest.name,) if newest else ()
    parts = PurePosixPath(pattern).parts
    found: dict[str, float] = {}
    for one in files:
        own = PurePosixPath(one.name).parts[: len(parts)]
        if len(own) == len(parts) and all(map(fnmatchcase, own, parts)) and is_text("/".join(own)):
            name = "/".join(own)
            found[name] = max(found.get(name, 0.0), one.changed)
    return tuple(sorted(found, key=lambda name: (found[name], name)))


def take_over(taken: TakenOver, work: WorkFolder) -> None:
    """Move the place where an earlier run worked into a work folder; done before, this does nothing.

    It is never in both, nor half in one: whatever ends this, one of the runs has it all.

    Raises:
        UserError: when it cannot be moved.
    """
    try:
        if taken.work.tree.look(WorkFolder.PROGRAM).is_folder:
            Path(taken.work.program).rename(work.program)
    except FileNotFoundError:
        pass
    except NotAFileError as error:
        raise UserError(f"{taken.work.program}: {error}; remove it, and the program starts over") from None
    except OSError as error:
        raise UserError(f"{work.program}: cannot be moved there: {error.strerror}; {remedy_for(error)}") from None
    for name in taken.left_out:
        if why := work.tree.remove(f"{WorkFolder.PROGRAM}/{name}"):
            raise UserError(f"{work.program}/{name}: {why}; remove it")
