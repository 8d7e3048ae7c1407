"""Explains a run from its record and folder."""

import re
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from harness.diagnosis.explain import explain_run
from harness.environments.executors.job import Exit
from harness.evidence.outcome.decide import Outcome
from harness.evidence.run_files import Explanation, Record
from harness.evidence.run_folder import RunFolder
from harness.matrix.cells import Preset

if TYPE_CHECKING:
    from harness.evidence.outcome.diagnoses import Diagnosis

_EXIT = re.compile(
    r"(?:exit (?P<code>\d{1,9})|signal (?P<number>\d{1,9})|(?P<name>SIG\w+))(?P<memory>, out of memory)?"
)


def explain_record(folder: RunFolder, record: Record, presets: Collection[Preset] = ()) -> Explanation:
    """Explain a recorded run by the present signatures; if none matches, return the explanation in its record."""
    intent = record.intent
    # A record of another version may have a diagnosis that is unknown here.
    outcome = Outcome(record.outcome, cast("Diagnosis | None", record.diagnosis), record.detail)
    exits = dict(_exits(record))
    own = intent.program is not None
    found = explain_run(folder, outcome, exits, intent.host, intent.rocm, intent.torch, presets, own_program=own)
    return found if found.rule or not record.explanation else record.explanation


def _exits(record: Record) -> Iterator[tuple[str, Exit]]:
    """Yield how each process ended; what another host says in words that nobody writes tells nothing."""
    for phase, words in record.exit.items():
        with suppress(ValueError):
            yield phase, exit_of(words)


def exit_of(words: str) -> Exit:
    """Return the exit that `str` turned into `words`.

    Raises:
        ValueError: when `words` describe no exit.
    """
    found = _EXIT.fullmatch(words)
    if found is None or (found["name"] and found["name"] not in signal.Signals.__members__):
        raise ValueError(f"{words!r} is not how a process ends")
    if found["code"]:
        return Exit(int(found["code"]), found["memory"] is not None)
    number = int(found["number"]) if found["number"] else int(signal.Signals[found["name"]])
    return Exit(-number, found["memory"] is not None)
