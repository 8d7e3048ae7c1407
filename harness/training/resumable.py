"""Refuses, before anything runs, to resume a training with other options than its record has."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.files.json_bounds import json_object
from harness.base.files.storage import read_regular
from harness.evidence.files.run_files import Record
from harness.evidence.files.work_folder import checkpoint_folders, newest_checkpoints, steps_done
from harness.evidence.records import Results, check_run_id
from harness.matrix.workload_options import arguments
from harness.training.attempts import ATTEMPTS_FILE, LARGEST_FILE

# Options that the app itself requires to be the same when it resumes (its identity.py has the complete list).
SAME = (
    *("rows", "as_of", "lookback", "data_fraction", "placement", "value_area", "rth_close", "rolls", "target", "seed"),
    *("batch_size", "learning_rate", "weight_decay", "clip_norm", "schedule", "keep", "hidden_layers", "chunk_rows"),
)
# The one of these options without a default: it is absent if all rows are in memory.
WITHOUT_DEFAULT = "chunk_rows"


def require_checkpoint(output: Path, name: str, models: Sequence[str]) -> None:
    """Raise UserError where the user's folder has no checkpoint of any of the models to resume."""
    if not newest_checkpoints([output.resolve()], dict.fromkeys(checkpoint_folders(models, name))):
        raise UserError(
            f"--resume: {output} has no checkpoint of {name}; give the folder and the name of that training, or leave "
            "--resume out to train from the beginning"
        )


def check_resumable(output: Path, name: str, options: Mapping[str, Any], results: Results) -> None:
    """Refuse to resume, with other options, from the checkpoints in the user's folder.

    If no record tells how they were made nothing is refused here: the app reads the checkpoints and decides.

    Raises:
        UserError: naming the first option that differs.
    """
    before = next(_trained(output, name, results), None)
    if before is None:
        return
    was = before.intent.options
    for option in SAME:
        if option != WITHOUT_DEFAULT and not (option in was and option in options):
            # Left to the app, whose default may be the same; or the record is of an older app.
            continue
        if was.get(option) != options.get(option):
            then, now = (" ".join(arguments({option: of[option]})) if option in of else "none" for of in (was, options))
            raise UserError(
                f"--resume: the checkpoints in {output} are of a training with {then}, this one has {now}; give the "
                "same, or leave --resume out to train from the beginning"
            )


def _trained(output: Path, name: str, results: Results) -> Iterator[Record]:
    """Yield the last completed attempt that put its checkpoints there, if they are still the ones of its last steps."""
    with suppress(OSError):
        for line in reversed(read_regular(output / ATTEMPTS_FILE, LARGEST_FILE).splitlines()):
            # Anybody may have written a line, of a run that is damaged or no run at all.
            with suppress(KeyError, UserError):
                check_run_id(run_id := str(json_object(line)["run"]))
                record = results.record(run_id)
                if record and record.result and record.result.trainings[-1].model.file == f"{name}.pt":
                    folders = checkpoint_folders(record.intent.options.get("model", ("mlp",)), name)
                    there = newest_checkpoints([output.resolve()], dict.fromkeys(folders))
                    if steps_done(there) == sum(one.steps_done for one in record.result.trainings):
                        yield record
                    return
