"""What sound YAML files hold, from one process to the next: to parse a matrix takes longer than most commands need."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.paths import CACHE, CHECKOUT
from harness.base.storage import write_json

LOCK = CHECKOUT / "requirements.txt"
NAME_LENGTH = 20
# What is shorter is parsed as soon as looked for.
LONG = 1000


def kept(text: str, folder: Path = CACHE) -> Any:
    """What an earlier process found `text` to hold; None where it is not known."""
    try:
        return json.loads(_file(text, folder).read_bytes())
    except (OSError, ValueError):
        return None


def keep(text: str, held: Any, folder: Path = CACHE) -> None:
    """Keep what a long `text` holds for `kept`, unless JSON would tell it otherwise, as keys that are numbers."""
    # A cache: where it cannot be written, files are parsed again. Commands that only look make no folder for it.
    with suppress(UserError, OSError, TypeError, ValueError):
        if len(text) >= LONG and folder.is_dir() and json.loads(json.dumps(held, allow_nan=False)) == held:
            write_json(_file(text, folder), held)


def _file(text: str, folder: Path) -> Path:
    # Another release of the parser may read it otherwise.
    known_by = hashlib.sha256(LOCK.read_bytes() + text.encode()).hexdigest()
    return folder / f"yaml-{known_by[:NAME_LENGTH]}.json"
