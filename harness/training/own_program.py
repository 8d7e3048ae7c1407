"""Training with a program of the user's own: how its attempts ended, where the next one continues, its files."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.files.storage import cannot_be_written, copy_durably, unfinished
from harness.base.files.untrusted_copy import copy_out
from harness.base.files.untrusted_file import BLOCK, NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree
from harness.base.text import safe_text
from harness.base.wording import many
from harness.evidence.app_reports.last_line import last_line
from harness.evidence.app_reports.program_progress import whole_progress
from harness.evidence.files.program_files import TakenOver, checkpoints, written_files
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import LARGEST, WorkFolder
from harness.evidence.outcome.diagnoses import Diagnosis
from harness.evidence.records import Results
from harness.matrix.programs import STDOUT, Program
from harness.training.attempts import ATTEMPTS_FILE
from harness.training.fallbacks import PREFERRED, Attempt, Begin
from harness.training.publish import place_to_keep
from harness.training.state import TrainingState

# Its command line is wrong, as most libraries that parse one say, or a shell has no such command, and nothing that is
# tried again makes it right.
MISTAKE_EXITS = {"exit 2", "exit 126", "exit 127"}
NOT_STARTED: Diagnosis = "not-started"
# It ended by itself with exit status 0, and what shows that it did its work is missing.
NO_RESULT: Diagnosis = "no-result"
# Attempts in a row that reported no progress, after which the checkpoint that they resumed from may be damaged.
MISSED_IN_A_ROW = 2
STARTS_OVER = "after a failure it starts over: nothing says how it resumes (--resume-with, --checkpoint)"
RESUMES = "after a failure it is started again and resumes"
# Most bytes of holes in all its files together: holes occupy no disk, but hashing them takes time.
MOST_HOLE_BYTES = 4 * LARGEST["checkpoint"]
# Name of such a training: a program's files have no names that are known in advance.
PROGRAM_NAME = "program"
# Files copied between two progress messages: about a second on a disk that is slow to sync.
FILES_PER_PROGRESS_MESSAGE = 100

PROGRAM_WORDS: Mapping[Begin, str] = {"resumed": "once more", "same-again": "once more"}


def attempts_of_program(training: TrainingState, records: Sequence[Record], results: Results) -> list[Attempt]:
    """Return how each attempt at a program that has its record ended.

    `step` is the last step that the attempt reported. For a program that reports none it is 0, and whether an attempt
    got further is not known.
    """
    return [
        _attempt(begin, record, results.folder_of(record.intent.run_id))
        for begin, record in zip(training.begins, records, strict=False)
    ]


def next_place(program: Program, records: Sequence[Record], results: Results) -> TakenOver | None:
    """Return the work folder that the next attempt continues in; None if it starts over.

    It is that of the last attempt that has one, with all its files. After two attempts in a row without progress the
    last checkpoint is left out.
    """
    if not program.resumes:
        return None
    for record in reversed(records):
        work = results.folder_of(record.intent.run_id).work
        try:
            written_files(work)
        except (FileNotFoundError, NotAFileError):
            continue
        found = checkpoints(work, program.checkpoint)
        damaged = found[-1:] if program.checkpoint and _missed(program, records, results) else ()
        left = found[: len(found) - len(damaged)]
        return TakenOver(work, left[-1] if left else None, damaged)
    return None


def place_in_words(program: Program, place: TakenOver | None) -> str:
    """Return in words how an attempt begins that continues in that folder."""
    if place is None:
        return "from the beginning"
    if place.checkpoint is None:
        if program.checkpoint and not place.left_out:
            return f"from the beginning: no file matches --checkpoint {safe_text(program.checkpoint)}"
        return "from the beginning"
    damaged = f", without {', '.join(map(safe_text, place.left_out))}" if place.left_out else ""
    named = safe_text(place.checkpoint) if program.checkpoint else "what it wrote"
    return f"resuming from {named}{damaged}"


def publish_program(
    folder: RunFolder, record: Record, output: Path, notify: Callable[[str], None] = lambda _: None
) -> tuple[Path, ...]:
    """Copy the program's files into the user's folder; return the kept copies of files that this replaced.

    Doing it twice changes nothing more. `notify`: called with the progress, because there may be a hundred thousand
    files.

    Raises:
        UserError: when a file cannot be read or written, or a link in the folder leads out of it.
    """
    work, program, replaced = folder.work, record.intent.program, []
    try:
        # The list of attempts there is the harness's own, and a file: nothing can be below it.
        names = sorted(one.name for one in written_files(work) if one.name.split("/")[0] != ATTEMPTS_FILE)
    except (FileNotFoundError, NotAFileError) as error:
        raise UserError(f"{work.program}: {error}; run it again") from None
    checked = {one.file: number for number, one in enumerate(program.produces if program else (), 1)}
    holes = MOST_HOLE_BYTES
    for number, name in enumerate(names):
        if number % FILES_PER_PROGRESS_MESSAGE == 0:
            notify(f"copying what the program wrote to {output}: {number:,} of {many(len(names), 'file')}")
        place = output / name
        # Whoever made the folder may have made a link in it to one where only this user may write.
        if not Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(output)):
            raise UserError(
                f"{safe_text(place.parent)}: leads out of {output}; remove that link, then give the same command"
            )
        half = unfinished(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            kept = folder.kept_product(checked[name]) if name in checked else None
            if kept and kept.is_file():
                copy_durably(kept, half)
            else:
                # Holes are allowed because the program may have allocated a file and not filled it.
                copy_out(work.tree, f"{WorkFolder.PROGRAM}/{name}", half, LARGEST["checkpoint"], holes)
                holes = max(0, holes - half.stat().st_size + half.stat().st_blocks * BLOCK)
            if place.is_file() and file_hash(place) != file_hash(half):
                previous = place_to_keep(place)
                place.replace(previous)
                replaced.append(previous)
            half.replace(place)
        except (FileNotFoundError, NotAFileError) as error:
            raise UserError(f"{work.program}/{safe_text(name)}: {error}; it is left there") from None
        except OSError as error:
            why = cannot_be_written(place, error)
            raise type(why)(f"{why}, then give the same command") from None
        finally:
            half.unlink(missing_ok=True)
    return tuple(replaced)


def remove_program(folder: RunFolder) -> None:
    """Remove the files that a program wrote in an attempt, once the user has them."""
    folder.work.tree.remove(WorkFolder.PROGRAM)
    UntrustedTree(folder.path).remove(RunFolder.LEFT_OUT)


def why_mistaken(record: Record, folder: RunFolder) -> str:
    """Return as one line why a program can never run as requested."""
    if record.diagnosis == NO_RESULT:
        return f"{record.detail}; what it wrote is in {folder.work.program}"
    return record.detail if record.diagnosis == NOT_STARTED else f"the program says: {last_line(folder.log)}"


def is_mistaken(record: Record, folder: RunFolder) -> bool:
    """Return whether a program can never run as requested.

    One without a result is not trained again from its beginning, since it would end in the same way after as long. One
    that resumes is, because that is short where all was done.
    """
    if record.outcome != "failed":
        return False
    if record.diagnosis == NO_RESULT:
        return not (record.intent.program and record.intent.program.resumes)
    mistaken = not MISTAKE_EXITS.isdisjoint(record.exit.values()) and not _reported_step(record, folder)
    return record.diagnosis == NOT_STARTED or mistaken


def _reported_step(record: Record, folder: RunFolder) -> int:
    program = record.intent.program
    return whole_progress(folder, program).step if program and program.progress != STDOUT else 0


def _attempt(begin: Begin, record: Record, folder: RunFolder) -> Attempt:
    return Attempt(
        begin=begin,
        outcome=record.outcome,
        class_=record.explanation.class_ if record.explanation else record.diagnosis,
        step=_reported_step(record, folder),
        mistake=is_mistaken(record, folder),
        trained=record.outcome == "completed",
        seconds=record.seconds,
    )


def _missed(program: Program, records: Sequence[Record], results: Results) -> bool:
    """Return whether the last attempts failed without progress so often that their checkpoint is suspect.

    The newest one must have. Those that could not run as requested, hung, crashed, or failed for a reason that has a
    fallback of its own, say nothing about it.
    """
    count = 0
    for record in reversed(records):
        folder = results.folder_of(record.intent.run_id)
        class_ = record.explanation.class_ if record.explanation else None
        ended_otherwise = record.outcome not in ("failed", "hung") or whole_progress(folder, program).advances
        says_nothing = record.diagnosis != "app-error" or class_ in PREFERRED or is_mistaken(record, folder)
        if ended_otherwise or (says_nothing and not count):
            break
        count += not says_nothing
    return count > 0 and count % MISSED_IN_A_ROW == 0
