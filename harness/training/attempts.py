"""What became of the attempts of a training, from their records, and the file that tells of them."""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.storage import make_folder_durably, write_durably
from harness.evidence.leftovers import OUTPUT
from harness.evidence.records import Results
from harness.evidence.run_files import Record
from harness.run.checkpoints import newest_checkpoints, steps_done
from harness.training.supervise import Attempt
from harness.training.trainings import FOLDER, Training

ATTEMPTS = "attempts.jsonl"
USER_MISTAKE = "exit 2"
# What was computed is not what was asked for: nothing of it may be gone on from.
WRONG = frozenset({"wrong-result", "wrong-workload", "wrong-data", "wrong-device", "wrong-stack", "incomplete-result"})

WORDS = {
    "first": "from the beginning",
    "going-on": "going on from the last checkpoint",
    "planned-restart": "a fresh process goes on from the last checkpoint",
    "by-hand": "once more, as asked for",
    "same-again": "the same again, from the last checkpoint",
    "fresh-allocator": "other settings of the memory allocator",
    "smaller-micro-batch": "a smaller micro-batch, the same batch",
    "no-hipblaslt": "without hipBLASLt",
    "no-p2p": "without copies from GPU to GPU",
    "one-device": "on one device",
    "cpu": "on the CPU",
}


def records_of(training: Training, results: Results) -> list[Record]:
    """The records of the attempts that were made; all that were noted, unless the last was never begun.

    Raises:
        UserError: when one is still being made, or a record is damaged.
    """
    records = []
    for number, run_id in enumerate(training.run_ids, start=1):
        record = results.record(run_id)
        if record is not None:
            records.append(record)
        elif number < len(training.begins) or results.run_folder(run_id).exists():
            begun_in = f"grep -l {training.id} {results.folder / FOLDER}/*.json"
            raise UserError(
                f"{run_id}: this attempt has no record; another host may be at it. If none is, remove the file that "
                f"`{begun_in}` names: the same command then begins anew"
            )
    return records


def attempts_of(training: Training, records: Sequence[Record], results: Results) -> list[Attempt]:
    """What became of each attempt that has its record."""
    attempts = []
    for begin, record in zip(training.begins, records, strict=False):
        wrong = record.diagnosis in WRONG and record.result is not None
        # A drill that nothing noticed would have been completed without it.
        trained = record.outcome == "completed" or record.diagnosis == "drill"
        checkpoints = newest_checkpoints([results.run_folder(record.intent.run_id) / OUTPUT])
        attempts.append(
            Attempt(
                begin=begin,
                outcome=record.outcome,
                class_=record.explanation.class_ if record.explanation else record.diagnosis,
                step=0 if wrong else steps_done(checkpoints),
                mistake=record.outcome == "failed" and USER_MISTAKE in record.exit.values(),
                trained=trained,
                wrong=wrong,
            )
        )
    return attempts


def told_of(training: Training, records: Sequence[Record], attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Each attempt as plain values."""
    return [
        {
            "schema": 1,
            "training": training.id,
            "attempt": number,
            "run": record.intent.run_id,
            "cell": record.intent.cell,
            "begin": attempt.begin,
            "why": WORDS[attempt.begin],
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


def write_attempts(output: Path, training: Training, told: Sequence[dict[str, Any]]) -> None:
    """Keep the attempts beside the model, after those of earlier trainings."""
    file = output / ATTEMPTS
    with _alone(output):
        lines = [line for line in _lines(file) if line.get("training") != training.id]
        write_durably(file, "".join(json.dumps(line, allow_nan=False) + "\n" for line in (*lines, *told)).encode())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else writes attempts there meanwhile: models of several names may be trained into one folder at once."""
    make_folder_durably(folder)
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                yield json.loads(line)
