"""Finds and removes files and folders that an app left in its work folder and that are not as they should be."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import Entry
from harness.base.text import safe_text
from harness.base.wording import size_in_words, some_of
from harness.evidence.files.work_folder import LARGEST, WorkFolder, regex_of
from harness.host.disk_use import DiskLimit, measure

# Most names in a message; of more, the number is given.
MOST_NAMED = 5
LONGEST_REMOVAL_SECONDS = 60.0

FOLDERS = (WorkFolder.OUTPUT, WorkFolder.STATES, WorkFolder.SCRATCH)
FILES = {
    WorkFolder.RESULT: LARGEST["result"],
    WorkFolder.PROGRESS: LARGEST["progress"],
    WorkFolder.POSITION: LARGEST["position"],
    WorkFolder.STACKS: LARGEST["stacks"],
}


@dataclass(frozen=True)
class Leftover:
    """A name in a work folder, or the folder itself, and what is wrong with it.

    `is_read`: whether the harness reads a file or folder of this name. If so, the run cannot be judged.
    """

    name: str
    why: str
    is_read: bool = True

    def __str__(self) -> str:
        return f"{safe_text(self.name)} in the work folder {self.why}" if self.name else f"the work folder {self.why}"


def leftovers(work: WorkFolder) -> tuple[Leftover, ...]:
    """Return what in a work folder cannot be read, or is not a file or folder where the app writes one.

    Only the folder itself and its folder of models are checked: HOME and the caches may contain anything.
    """
    try:
        found = sorted(work.tree.entries(), key=lambda entry: entry.name)
    except FileNotFoundError:
        return (Leftover("", "is gone"),)
    except NotAFileError as error:
        return (Leftover("", str(error)),)
    return (*(one for entry in found for one in _judged(work, entry)), *_in_output(work))


def in_short(found: tuple[Leftover, ...]) -> str:
    """Return in one line what was left; an empty text where nothing was."""
    more = [f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return "; ".join([*map(str, found[:MOST_NAMED]), *more])


def remove_excess(work: WorkFolder, needed: str = WorkFolder.OUTPUT) -> str:
    """Remove what no other run needs from the work folder of a run that took too much space; return that in words.

    What is `needed` stays: the folder of models and checkpoints, or that of a program of the user's own. So do the
    files in which the app reports; the words say how large they are.
    """
    gone: list[str] = []
    left: list[str] = []
    until = time.monotonic() + LONGEST_REMOVAL_SECONDS
    try:
        while names := [name for name in work.tree.some_names() if name not in left and not _stays(work, name, needed)]:
            for name in sorted(names):
                why = "has too many files to be removed" if time.monotonic() > until else work.tree.remove(name)
                (left if why else gone).append(name)
    except (FileNotFoundError, NotAFileError):
        # The work folder is missing or is not a folder, which was reported before.
        pass
    stays = measure((Path(work.path),), DiskLimit()).bytes
    removed = [f"removed from the work folder: {some_of(map(safe_text, gone), MOST_NAMED)}"] if gone else []
    kept = [f"not removed: {some_of(map(safe_text, left), MOST_NAMED)}"] if left else []
    return "; ".join([*removed, *kept, f"{size_in_words(stays)} are left in it"])


def _stays(work: WorkFolder, name: str, needed: str) -> bool:
    """Return whether a name in the work folder is the one that is needed, or that of a file that can be read."""
    if name == needed:
        return True
    largest = _largest(name)
    try:
        found = work.tree.look(name)
        return largest is not None and found.is_file and found.size <= largest
    except (FileNotFoundError, NotAFileError):
        return False


def _largest(name: str) -> int | None:
    """Return the most bytes that a file of this name may have; None where the app writes no such file."""
    return next((most for pattern, most in FILES.items() if re.fullmatch(regex_of(pattern), name)), None)


def _judged(work: WorkFolder, entry: Entry) -> Iterator[Leftover]:
    largest = _largest(entry.name)
    if largest is not None:
        try:
            with work.tree.open(entry.name, largest):
                pass
        except FileNotFoundError:
            pass
        except NotAFileError as error:
            yield Leftover(entry.name, str(error))
    elif entry.name in FOLDERS and not entry.is_folder:
        yield Leftover(entry.name, f"is {entry.kind}, not a folder")
    elif not (entry.is_file or entry.is_folder):
        yield Leftover(entry.name, f"is {entry.kind}", is_read=False)


def _in_output(work: WorkFolder) -> Iterator[Leftover]:
    try:
        found = sorted(work.tree.entries(WorkFolder.OUTPUT), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except NotAFileError as error:
        yield Leftover(WorkFolder.OUTPUT, str(error))
        return
    for entry in found:
        if not (entry.is_file or entry.is_folder):
            yield Leftover(f"{WorkFolder.OUTPUT}/{entry.name}", f"is {entry.kind}", is_read=False)
