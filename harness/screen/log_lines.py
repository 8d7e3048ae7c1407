"""The lines of a campaign's log: a finished run, the progress of runs, and the time in front."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from harness.base.wording import many
from harness.diagnosis.judge import OF_OUTCOMES, OF_PRODUCTS
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.report.invocation import AS_MADE
from harness.screen.colours import OUTCOME_COLOURS
from harness.screen.fitted import print_folded
from harness.screen.live import Current, advance_in_words


def print_stamped(console: Console, markup: str) -> None:
    """Print a log line with the UTC time in front."""
    print_folded(console, Text.from_markup(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {markup}"))


def advances_in_words(runs: Sequence[Current], now: float) -> str:
    """Return how far the first of the current runs is; the others, of which a cluster has many, are only counted."""
    others = f"; {many(len(runs) - 1, 'more run')} beside it" if len(runs) > 1 else ""
    return f"{runs[0].label}: {advance_in_words(runs[0], now)}{others}"


def finished_lines(record: Record, label: str, command: Callable[..., str] = AS_MADE.command) -> list[str]:
    """Return the outcome of a run as lines of rich markup, with further lines for an explanation or how it counts.

    `command`: returns a `matrix` command for the given words, with the global options that the user typed.
    """
    run_id = record.intent.run_id
    diagnosis = f" ({record.diagnosis})" if record.diagnosis else ""
    colour = OUTCOME_COLOURS[record.outcome]
    on = "" if record.ran_on == "unknown" else f", {escape(record.ran_on)}"
    lines = [
        f"{escape(label)}: [{colour}]{record.outcome}[/{colour}]{diagnosis} in {record.seconds:.1f} s"
        f"{on}: {escape(record.detail)}"
    ]
    if record.explanation and record.outcome not in ("completed", "interrupted"):
        more = f"{record.explanation.class_}; `{command('explain', run_id)}` says more"
        remedy = record.explanation.remedy
        lines.append(escape(f"  {remedy if remedy in (OF_OUTCOMES, OF_PRODUCTS) else more}"))
    count = count_runs([Row.of(record)])[run_id]
    if record.outcome == "interrupted" and count.counts_as == "failed":
        taken_out = f"`{command('strike', run_id, '--reason', 'TEXT')}` takes it out"
        lines.append(escape(f"  it counts as failed: {count.why}; {taken_out}"))
    return lines
