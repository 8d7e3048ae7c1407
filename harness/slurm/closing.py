"""Closes a run on its node: writes its record if another machine has the node's name now, or says why there is none."""

from harness.base.interrupts import shielded
from harness.campaign.bench.bench import Bench
from harness.campaign.recovery import record_of_lost
from harness.evidence.records import owner_alive


def why_no_record(bench: Bench, run_id: str) -> str | None:
    """Return why a run has no record yet; None if it has one.

    If another machine has the name of its node now, the machine that it ran on is gone: the run gets its record.

    Raises:
        UserError: when the run's intent cannot be read, or its record cannot be written.
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
        return f"{run_id}: its harness, process {intent.owner_pid}, still runs here; it writes the record when it ends"
    return f"{run_id}: nothing shows how it ended"
