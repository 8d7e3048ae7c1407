"""The health of GPUs since the boot, shared by all harnesses of a user in a file outside their results folders.

Two harnesses with separate results folders share the GPUs of a host: a GPU that one of them found unhealthy must not be
trusted by the other. The file only adds to the results folder's own log, which alone counts where the file cannot be
read or written.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.base.files.json_lines import read_json_lines
from harness.base.files.storage import open_regular
from harness.base.paths import state_folder
from harness.evidence.files.run_files import HealthStep

FOLDER = "health"


def share_step(step: HealthStep) -> None:
    """Share the finding of a probe with the other harnesses of this user; files of other boots are removed."""
    if step.check != "probe" or step.gpu is None or step.good is None:
        return
    with suppress(OSError, RuntimeError):
        file = _file(step.machine, step.boot_id)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in file.parent.glob(f"{step.machine}.*.jsonl"):
            if other != file:
                other.unlink(missing_ok=True)
        # Each line is a single write, so no lock is needed; a line torn by a crash is skipped by readers.
        with open_regular(file, adding=True) as stream:
            os.write(stream.fileno(), step.model_dump_json(by_alias=True).encode() + b"\n")


def shared_steps(machine: str, boot_id: str) -> Iterator[HealthStep]:
    """Yield the findings of this user's harnesses about a machine's GPUs since a boot; nothing if there are none."""
    with suppress(OSError, RuntimeError):
        for step in read_json_lines(_file(machine, boot_id), HealthStep):
            if (step.machine, step.boot_id) == (machine, boot_id):
                yield step


def _file(machine: str, boot_id: str) -> Path:
    """Return the file of the shared findings. Raises RuntimeError where there is no home."""
    return state_folder() / FOLDER / f"{machine}.{boot_id}.jsonl"
