"""The runs of a results folder that count as evidence on a bench now, as a campaign in stages reads them."""

import json
from collections.abc import Iterable
from functools import cached_property

from harness.campaign.bench.bench import Bench
from harness.environments.environment_hashes import current_hashes
from harness.evidence.app_reports.progress import last_phase
from harness.evidence.host_state import changed_settings, settings_of, state_from_json
from harness.evidence.index import Index
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts, counts_of
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.run.workload_data import read_data
from harness.search.stages.runs import SeenRun, SeenRuns


def is_of_other_settings(row: Row, host: HostFacts) -> bool:
    """Return whether a run was made on this very host, but with other settings of the host."""
    if row.machine != host.machine:
        return False
    return bool(changed_settings(state_from_json(row.host_state).settings, settings_of(host)[host.machine]))


class StageEvidence:
    """Reads the evidence repeatedly; what only a record holds, and not its row of the index, is read once."""

    def __init__(self, bench: Bench, matrix: Matrix, campaign: str | None = None) -> None:
        self._bench = bench
        self._matrix = matrix
        self._campaign = campaign
        self._told: dict[str, tuple[str | None, tuple[str, ...]]] = {}
        self._hashes: dict[tuple[str, str], str] = {}
        self._known: set[tuple[str, str]] = set()

    def read(self) -> SeenRuns:
        """Return the runs on this kind of host with its current settings, in the environments that cells have now."""
        everything = Index(self._bench.results).rows()
        counts = counts_of(self._bench.results, everything)
        here = (self._bench.host.kind, self._bench.executor_name)
        rows = [row for row in everything if (row.host_kind, row.executor) == here and not row.imported]
        now = self._now(rows)
        return SeenRuns.of(
            self._seen(row, counts)
            for row in rows
            if row.injected_fault is None
            and row.environment_hash == now[row.cell, row.executor]
            and not is_of_other_settings(row, self._bench.host)
        )

    def _seen(self, row: Row, counts: Counts) -> SeenRun:
        count = counts[row.run_id]
        gpus = tuple(sorted(json.loads(row.gpus)))
        phase, remedies = self._of_failure(row) if count.counts_as == "failed" else (None, ())
        here = row.machine == self._bench.host.machine
        return SeenRun(row, count, gpus, phase, remedies, here=here, on_data=self._is_on_data(row))

    def _is_on_data(self, row: Row) -> bool:
        """Return whether a run was made on the data of the bench, if a user named any, or in this campaign.

        The runs of this campaign count even if the file has changed meanwhile: asking for more of them would not end.
        """
        if self._bench.data is None or row.own_program or (self._campaign and row.campaign == self._campaign):
            return True
        return row.data_sha256 == self._data

    @cached_property
    def _data(self) -> str | None:
        return read_data(self._bench.data).sha256 if self._bench.data else None

    def _of_failure(self, row: Row) -> tuple[str | None, tuple[str, ...]]:
        """Return the last phase of a failed run, and the presets that its diagnosis recommends."""
        if row.run_id not in self._told:
            # The row of a damaged record still counts.
            record = self._bench.results.readable_record(row.run_id)
            explanation = record.explanation if record else None
            # If the host went down during a run, only its progress tells the phase.
            phase = record.last_phase if record else None
            phase = phase or last_phase(self._bench.results.folder_of(row.run_id).work)
            self._told[row.run_id] = phase, explanation.presets if explanation else ()
        return self._told[row.run_id]

    def _now(self, rows: Iterable[Row]) -> dict[tuple[str, str], str]:
        """Return the current environment hash of each cell: that made here, else one to be made, else the newest."""
        newest = {(row.cell, row.executor): row.environment_hash for row in sorted(rows, key=lambda row: row.started)}
        # Compute these once: it takes long, and they change only when an environment is made.
        if unknown := newest.keys() - self._known:
            self._hashes.update(current_hashes(self._matrix, unknown))
            self._known |= unknown
        made = self._bench.made_hashes(self._matrix.cells[cell] for cell, _ in newest if cell in self._matrix.cells)
        return {**newest, **self._hashes, **made}
