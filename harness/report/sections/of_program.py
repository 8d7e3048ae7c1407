"""The answer of a campaign of a program of the user's own: how its runs ended. Pure."""

from collections.abc import Sequence

from harness.base.wording import listed, many
from harness.campaign.answered import Command
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import REFUSED
from harness.report.invocation import Invocation


def answer_of_program(rows: Sequence[Row], invocation: Invocation) -> tuple[str, Command]:
    """Return a sentence on the runs of a campaign, and the command to type next; `rows` are in the order of time."""
    failed = [row for row in rows if row.outcome != "completed"]
    cells = listed(f"`{cell}`" for cell in dict.fromkeys(row.cell for row in rows))
    sentence = (
        f"Your program completed in {len(rows) - len(failed)} of {many(len(rows), 'run')}, in {cells}; "
        "its numbers are not checked, and it names no cell to train in."
    )
    if all(row.diagnosis == REFUSED for row in rows):
        sentence = f"Your program refused its command in {cells}, so nothing was tried: {rows[-1].detail}."
    if failed:
        newest = failed[-1]
        why = f"shows the evidence of the newest `{newest.diagnosis}`"
        return sentence, Command(command=invocation.command("explain", newest.run_id), why=why)
    why = invocation.in_text(
        "lists its runs there; `matrix train --app` starts a program again after a crash or a hang"
    )
    return sentence, Command(command=invocation.command("status", rows[-1].cell), why=why)
