"""The health of GPUs since the boot, for all harnesses of a user: a file beside the logs of their results folders.

Two harnesses with results folders of their own share the GPUs of a host; one that the one found unhealthy must not be
trusted by the other. It only adds to what the own log says: where it cannot be written or read, that alone counts.
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
    """Tell the other harnesses of this user what a probe found of a GPU; those of other boots are forgotten."""
    if step.check != "probe" or step.gpu is None or step.good is None:
        return
    with suppress(OSError, RuntimeError):
        file = _file(step.machine, step.boot_id)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in file.parent.glob(f"{step.machine}.*.jsonl"):
            if other != file:
                other.unlink(missing_ok=True)
        # One write of a line, so that no lock is needed; what a crash tears is passed over.
        with open_regular(file, adding=True) as stream:
            os.write(stream.fileno(), step.model_dump_json(by_alias=True).encode() + b"\n")


def shared_steps(machine: str, boot_id: str) -> Iterator[HealthStep]:
    """Yield what the harnesses of this user found of a machine's GPUs since a boot; nothing where it is not known."""
    with suppress(OSError, RuntimeError):
        for step in read_json_lines(_file(machine, boot_id), HealthStep):
            if (step.machine, step.boot_id) == (machine, boot_id):
                yield step


def _file(machine: str, boot_id: str) -> Path:
    """Return its file. Raises RuntimeError where there is no home."""
    return state_folder() / FOLDER / f"{machine}.{boot_id}.jsonl"
