"""The files that a program of the user's own wrote in its working folder, and how a run takes over an earlier run's."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from harness.base.errors import UserError
from harness.base.files.storage import remedy_for
from harness.base.files.untrusted_file import NotAFileError
from harness.base.text import is_text
from harness.evidence.files.work_folder import WorkFolder

MOST_FILES = 100_000


@dataclass(frozen=True)
class Written:
    """A file that a program wrote, by its name in the working folder. `changed`: when, in seconds since 1970."""

    name: str
    changed: float


@dataclass(frozen=True)
class TakenOver:
    """The working folder of an earlier run of a program, in `work`, from which a run resumes.

    `checkpoint`: the newest file or folder in it from which the program can resume; None where there is none.
    `left_out`: files and folders in it from which the program must not resume.
    """

    work: WorkFolder
    checkpoint: str | None
    left_out: tuple[str, ...] = ()


def written_files(work: WorkFolder) -> tuple[Written, ...]:
    """Return the files that a program wrote, in no particular order; links are left out.

    Raises:
        FileNotFoundError: when the program has no working folder.
        NotAFileError: when a folder cannot be read, or there are too many files.
    """
    found = []
    for one in work.tree.files(WorkFolder.PROGRAM):
        found.append(Written(one.name, one.changed))
        if len(found) > MOST_FILES:
            raise NotAFileError(f"holds more than {MOST_FILES} files")
    return tuple(found)


def checkpoints(work: WorkFolder, pattern: str | None) -> tuple[str, ...]:
    """Return the files and folders that match a pattern, the newest last; without a pattern only the newest file.

    A folder is as new as its newest file. Nothing is returned where the working folder cannot be read. A name that is
    no text matches nothing, because no command or record could repeat it.
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


def take_over(taken: TakenOver, work: WorkFolder, left_out: Path) -> None:
    """Move the working folder of an earlier run into a work folder; do nothing if it has been moved already.

    The move is one rename, so if it is interrupted one of the two runs still has the whole folder. `left_out`: the
    folder to move that into from which the program must not resume; it may have been sound after all.

    Raises:
        UserError: when the folder cannot be moved.
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
        try:
            left_out.mkdir(exist_ok=True)
            work.tree.move_out(f"{WorkFolder.PROGRAM}/{name}", left_out / name.replace("/", "_"))
        except FileNotFoundError:
            continue
        except (NotAFileError, OSError) as error:
            raise UserError(f"{work.program}/{name}: cannot be moved to {left_out}: {error}; move it") from None
