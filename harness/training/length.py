"""An estimate of how long a training takes, made before it begins from an earlier run of its cell on the same data."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.base.durations import span
from harness.base.errors import UserError
from harness.base.wording import many
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell
from harness.matrix.workload_options import options_of
from harness.matrix.workloads import Workload

# The options that mainly decide how much there is to compute in an epoch.
DECIDE = ("rows", "as_of", "lookback", "data_fraction", "target", "model", "hidden_layers", "batch_size", "strategy")


def length_in_words(
    cell: Cell, workload: Workload, data_sha256: str, results: Results, host: HostFacts, *, resumes: bool = False
) -> str:
    """Return the number of epochs, and the time that they take if a record of this host allows an estimate.

    `resumes`: whether some of them may be done already.
    """
    stops = workload.patience and workload.keep == "best"
    epochs = many(workload.epochs, "epoch") + " at most" * bool(stops)
    for record in _of_such(cell, workload, data_sha256, results, host):
        trainings = record.result.trainings if record.result else ()
        if not any(one.resumed_at for one in trainings) and all(one.epochs_done for one in trainings):
            steps = sum(one.steps_per_epoch for one in trainings)
            epochs_took = [(sum((one.time or {}).values()) or one.throughput.train_seconds) for one in trainings]
            epoch = sum(took / one.epochs_done for took, one in zip(epochs_took, trainings, strict=True))
            seconds = max(0.0, record.seconds - sum(epochs_took)) + epoch * workload.epochs
            by = f"by the last run of {cell.id} on this data"
            # Where sessions choose the epoch, fewer are left to train on.
            alike = _chooses(record.intent.options) == _chooses(options_of(workload))
            each = f", each of about {many(steps, 'step')}" * alike
            whole = " in all, what is done already included" if resumes else ""
            return f"{epochs}{each}: about {span(seconds)}{whole}, {by}"
    return f"{epochs}; how long one takes is not known yet: the first one shows it"


def _chooses(options: Mapping[str, Any]) -> bool:
    return options.get("keep") == "best" or bool(options.get("patience"))


def _of_such(cell: Cell, workload: Workload, data_sha256: str, results: Results, host: HostFacts) -> Iterator[Record]:
    """Yield the records of completed runs in the cell on this machine, on the same data, the newest first."""
    wanted = options_of(workload, DECIDE)
    rows = [
        row
        for row in Index(results).rows()
        if (row.cell, row.machine, row.outcome) == (cell.id, host.machine, "completed")
    ]
    for row in sorted(rows, key=lambda row: row.started, reverse=True):
        try:
            record = results.record(row.run_id)
        except UserError:
            continue
        if record and record.intent.data.sha256 == data_sha256:
            had = record.intent.options
            if {name: had.get(name) for name in wanted} == wanted:
                yield record
