"""The end of closing a run on its node: its record where the machine is another one now, or why there is none."""

from harness.base.interrupts import shielded
from harness.campaign.bench.bench import Bench
from harness.campaign.recovery import record_of_lost
from harness.evidence.records import owner_alive


def why_left(bench: Bench, run_id: str) -> str | None:
    """Return why a run has no record yet; None where it has one.

    Where another machine has the name of its node now, the one that it ran on has gone: it gets its record.

    Raises:
        UserError: when its intent cannot be read, or its record not be written.
    """
    results = bench.results
    intent = results.intent(run_id)
    if intent is None or results.has_record(run_id):
        return None
    if intent.host.machine != bench.host.machine:
        with shielded():
            results.finish(record_of_lost(intent, results))
        return None
    if owner_alive(intent):
        return (
            f"{run_id}: its harness, process {intent.owner_pid}, still runs here; when it has ended there is a record"
        )
    return f"{run_id}: nothing was found out of what became of it"
