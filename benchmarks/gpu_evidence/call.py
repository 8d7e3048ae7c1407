"""Call the function of a row, in the row's process, and write its numbers to a file."""

import json
import math
from importlib import import_module
from pathlib import Path

from benchmarks.gpu_evidence.finding import DiffersError, Finding, Kit, Numbers
from benchmarks.gpu_evidence.rows import row_named
from vpoc.probes.site import Site


def call(site: Site, name: str, arrays: str, steps: str, folder: str) -> str:
    """Run the row `name` and return its line of text; its numbers go to a file of that name in `folder`."""
    row = row_named(name)
    module, _, function = row.function.partition(":")
    try:
        found: Finding = getattr(import_module(module), function)(site, Kit(Path(arrays), int(steps)), *row.arguments)
    except DiffersError as error:
        _leave(Path(folder), name, error.numbers)
        raise
    _leave(Path(folder), name, found.numbers)
    return found.text


def _leave(folder: Path, name: str, numbers: Numbers) -> None:
    plain = {key: str(value) if _no_number(value) else value for key, value in numbers.items()}
    (folder / f"{name}.json").write_text(json.dumps(plain, allow_nan=False), encoding="utf-8")


def _no_number(value: object) -> bool:
    """Return whether a value is a float that strict JSON cannot express."""
    return isinstance(value, float) and not math.isfinite(value)
