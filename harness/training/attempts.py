"""The attempts of a training: how each ended, according to its record, and the file that lists them."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any

from harness.base.errors import InUseError, UserError
from harness.base.files.json_bounds import json_object
from harness.base.files.locks import wait_for_lock
from harness.base.files.storage import cannot_be_written, make_folder_durably, read_regular, write_durably
from harness.evidence.files.run_files import Record
from harness.evidence.files.work_folder import checkpoint_folders, furthest, newest_checkpoints, steps_done
from harness.evidence.outcome.diagnoses import is_wrong
from harness.evidence.records import Results
from harness.training.fallbacks import Attempt, Begin
from harness.training.state import TRAININGS_FOLDER, TrainingState

ATTEMPTS_FILE = "attempts.jsonl"
LOCK_SECONDS = 10.0
# Most bytes of that file, which others may have written: those of some thousand attempts.
LARGEST_FILE = 2 << 20
USER_MISTAKE = "exit 2"
# After this many wrong attempts in a row, the checkpoints that they resumed from are not trusted either, and the
# training begins again.
WRONG_IN_A_ROW = 2

BEGIN_WORDS: Mapping[Begin, str] = {
    "first": "from the beginning",
    "resumed": "resumed from the last checkpoint",
    "planned-restart": "a fresh process resumes from the last checkpoint",
    "by-hand": "once more, as asked for",
    "same-again": "the same again, from the last checkpoint",
    "fresh-allocator": "other settings of the memory allocator",
    "smaller-micro-batch": "a smaller micro-batch, the same batch",
    "no-hipblaslt": "without hipBLASLt",
    "no-p2p": "without copies from GPU to GPU",
    "one-device": "on one device",
    "other-stack": "in another stack, with the settings asked for",
    "cpu": "on the CPU",
}


def records_of(training: TrainingState, results: Results) -> list[Record]:
    """Return the records of the attempts that were made: one for each in the state, except a last one that never began.

    Raises:
        UserError: when an attempt is still being made, or a record is damaged.
    """
    records = []
    for number, run_id in enumerate(training.run_ids, start=1):
        record = results.record(run_id)
        if record is not None:
            records.append(record)
        elif number < len(training.begins) or results.run_folder(run_id).exists():
            begun_in = f"grep -l {training.id} {results.folder / TRAININGS_FOLDER}/*.json"
            raise UserError(
                f"{run_id}: this attempt has no record; another host may be running it. If none is, remove the file "
                f"that `{begun_in}` names: the same command then begins from the start"
            )
    return records


def checkpoints_of(record: Record, results: Results, name: str) -> tuple[PurePath, ...]:
    """Return the checkpoints that an attempt leaves for the next one, for the models of a training called `name`.

    Only checkpoints up to the steps that the run's progress accounts for count; a wrong attempt has none. For a run of
    an older app these steps are not known, and all its checkpoints count.
    """
    if _is_wrong(record):
        return ()
    folders, accounted = checkpoint_folders(record.intent.options.get("model", ("mlp",)), name), record.steps_accounted
    upto: dict[str, int | None] = dict.fromkeys(folders)
    if accounted is not None:
        upto = dict(zip(folders, (*accounted, *[0] * len(folders)), strict=False))
    return newest_checkpoints([results.folder_of(record.intent.run_id).work.output], upto)


def _is_wrong(record: Record) -> bool:
    return is_wrong(record.diagnosis, has_result=record.result is not None)


def attempts_of(training: TrainingState, records: Sequence[Record], results: Results, name: str) -> list[Attempt]:
    """Return how each attempt with a record ended, in a training of models called `name`."""
    attempts: list[Attempt] = []
    for begin, record in zip(training.begins, records, strict=False):
        wrong = _is_wrong(record)
        # Nothing but the injected fault kept this run from counting as completed: its model is complete.
        trained = record.outcome == "completed" or record.diagnosis == "injected-fault"
        handed_over = checkpoints_of(record, results, name)
        checkpoints = furthest([*last_checkpoints(attempts), *handed_over])
        attempts.append(
            Attempt(
                begin=begin,
                outcome=record.outcome,
                class_=record.explanation.class_ if record.explanation else record.diagnosis,
                step=0 if wrong else steps_done(checkpoints),
                checkpoints=checkpoints,
                # After a step its input was right, and what failed may pass.
                mistake=record.outcome == "failed" and USER_MISTAKE in record.exit.values() and not record.first_step,
                trained=trained,
                wrong=wrong,
            )
        )
    return attempts


def distrusted(attempts: Sequence[Attempt]) -> bool:
    """Return whether so many attempts in a row were wrong that the checkpoints from before them are not trusted."""
    runs = (attempts[first : first + WRONG_IN_A_ROW] for first in range(len(attempts) - WRONG_IN_A_ROW + 1))
    return any(all(attempt.wrong for attempt in run) for run in runs)


def last_checkpoints(attempts: Sequence[Attempt]) -> tuple[PurePath, ...]:
    """Return the checkpoints that the next attempt resumes from: the last ones of attempts that were not wrong."""
    return attempts[-1].checkpoints if attempts and not distrusted(attempts[-WRONG_IN_A_ROW:]) else ()


def begin_in_words(begin: Begin, *, resumes: bool) -> str:
    """Return how an attempt begins, in words. `resumes`: from a checkpoint, perhaps one of an earlier training."""
    words = BEGIN_WORDS["resumed" if resumes and begin == "first" else begin]
    if resumes:
        return words
    return words.replace("resumed from", "once more, from").replace("the last checkpoint", "the beginning")


def attempts_as_dicts(
    training: TrainingState, records: Sequence[Record], attempts: Sequence[Attempt], words: Mapping[Begin, str]
) -> list[dict[str, Any]]:
    """Return each attempt as plain values; `words` replace those on how it begins."""
    return [
        {
            "schema": 2,
            "training": training.id,
            "attempt": number,
            "run": record.intent.run_id,
            "cell": record.intent.cell,
            "begin": attempt.begin,
            "why": words.get(attempt.begin) or begin_in_words(attempt.begin, resumes=any(record.intent.resumed)),
            "micro_batch_size": record.intent.options.get("micro_batch_size"),
            "outcome": record.outcome,
            "diagnosis": record.diagnosis,
            "class": attempt.class_,
            "detail": record.detail,
            "step": attempt.step,
            "finished": record.finished,
        }
        for number, (record, attempt) in enumerate(zip(records, attempts, strict=True), start=1)
    ]


def write_attempts(
    output: Path, training: TrainingState, attempts: Sequence[dict[str, Any]], say: Callable[[str], None]
) -> None:
    """Write the attempts beside the model, after those of earlier trainings.

    `say`: called with the reason if they cannot be written because the folder stays locked, or a file of that name is
    too large or none of ours. Anyone with access to the folder can keep it locked, so the wait is short; the next call
    writes all attempts.

    Raises:
        UserError: when the folder cannot be written to, and there is no attempt yet.
    """
    file = output / ATTEMPTS_FILE
    try:
        with _locked_folder(output):
            try:
                lines = _lines_of_others(file, training)
            except OSError as error:
                say(f"{ATTEMPTS_FILE} lacks the last attempts: {file}: {error.strerror}; move it away")
                return
            lines += [json.dumps(one, allow_nan=False).encode() for one in attempts]
            write_durably(file, b"".join(line + b"\n" for line in lines))
    except UserError as error:
        # A disk that is full or gone by now must not end the training; before it begins it does.
        if not (attempts or isinstance(error, InUseError)):
            raise
        say(f"{ATTEMPTS_FILE} lacks the last attempts: {error}")


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Lock the folder, because several models may be trained into one folder at the same time."""
    try:
        make_folder_durably(folder)
        place = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise cannot_be_written(folder, error) from None
    try:
        wait_for_lock(place, folder, LOCK_SECONDS)
        yield
    finally:
        os.close(place)


def _lines_of_others(file: Path, training: TrainingState) -> list[bytes]:
    """Return the lines of other trainings as they are, because a value such as NaN could not be written again."""
    with suppress(FileNotFoundError):
        lines = read_regular(file, LARGEST_FILE).splitlines()
        return [line for line in lines if (one := json_object(line)) and one.get("training") != training.id]
    return []
