"""Bounds of pass rates from one process to the next: to import what computes them takes longer than all the rest."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.base.errors import UserError
from harness.base.paths import CACHE
from harness.base.storage import file_hash, write_json
from harness.evidence.verdicts import rates

NAME_LENGTH = 12


@contextmanager
def kept_bounds(folder: Path = CACHE) -> Iterator[None]:
    """Within, bounds that an earlier process computed are known; those that are new are kept for the next."""
    # Another formula has another file.
    file = folder / f"bounds-{file_hash(Path(rates.__file__))[:NAME_LENGTH]}.json"
    kept = _read(file)
    rates.known.update(kept)
    yield
    if rates.known.keys() - kept.keys():
        # A cache: where it cannot be written, bounds are computed again.
        with suppress(UserError):
            write_json(file, [[*key, bound] for key, bound in sorted(rates.known.items())])


def _read(file: Path) -> dict[tuple[int, int, float], float]:
    try:
        told = json.loads(file.read_bytes())
        return {(int(passes), int(runs), float(confidence)): float(low) for passes, runs, confidence, low in told}
    except (OSError, ValueError, TypeError):
        return {}
