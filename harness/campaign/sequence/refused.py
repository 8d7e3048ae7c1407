"""Finds the runs whose command the app refuses, and would refuse again."""

from collections.abc import Iterable

from harness.campaign.bench.plan import PendingRun
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import REFUSED, counts_of


def refused_of(made: Iterable[tuple[PendingRun, Record]], results: Results) -> list[Record]:
    """Return those of some runs whose command the app refused, unless it accepts the same command in other runs."""
    refused = [record for _, record in made if record.diagnosis == REFUSED]
    counts = counts_of(results) if refused else {}
    return [record for record in refused if counts[record.intent.run_id].kind == REFUSED]
