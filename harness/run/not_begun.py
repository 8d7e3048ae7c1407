"""The record of a run that was not begun, as its host lacks what it runs in."""

import time

from harness.base.interrupts import shielded
from harness.evidence.outcome.decide import undecided
from harness.evidence.records import Results
from harness.evidence.run_files import Record
from harness.run.asked import Run
from harness.run.spec import resolve_run


def record_not_begun(run: Run, results: Results, why: str) -> Record:
    """Leave the intent and the record of a run of which nothing was started; `why` is its host's fault.

    Raises:
        UserError: when the results folder cannot be written.
    """
    with shielded():
        spec = resolve_run(run, results.folder_of(run.run_id))
        results.begin(spec.intent)
        outcome = undecided("image", why)
        record = Record(
            intent=spec.intent,
            outcome=outcome.name,
            diagnosis=outcome.diagnosis,
            detail=outcome.detail,
            exit={},
            ran_on="unknown",
            finished=time.time(),
            seconds=0.0,
            last_phase=None,
            result=None,
            steps_accounted=(),
            first_step=False,
        )
        results.finish(record)
    return record
