"""Look at this host and plan the runs of a campaign."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.base.storage import file_hash
from harness.campaign.bench import Bench, BenchOptions, open_bench
from harness.campaign.plan import Plan, make_plan
from harness.environments.capabilities import Capabilities, capabilities_of
from harness.evidence.index import Index
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Cell, Matrix, Workload
from harness.matrix.workload_options import workload_hash
from harness.run.workload_data import synthetic_place
from harness.search.goal import Goal


@dataclass(frozen=True)
class PreparedCampaign:
    """A plan with everything that is needed to run it."""

    plan: Plan
    capabilities: Capabilities
    bench: Bench
    matrix: Matrix

    def verdicts_here(self) -> list[Verdict]:
        """Return what is known of the workload of the plan on this kind of host."""
        mine = (self.plan.workload.name, self.bench.host.kind, self.capabilities.executor)
        known = of_results.verdicts(self.bench.results, self.matrix, self.bench.host)
        return [one for one in known if (one.workload, one.host_kind, one.executor) == mine]


def prepare_campaign(
    options: BenchOptions,
    matrix: Matrix,
    cells: Sequence[Cell],
    workload: Workload,
    repeats: int = 1,
    *,
    goal: Goal | None = None,
    named: bool = False,
    controls: bool = False,
) -> PreparedCampaign:
    """Look at this host and plan the runs. `named`, `controls` as in `make_plan`.

    Raises:
        UserError: when the data or the interpreter does not exist.
    """
    bench = open_bench(options, cells)
    capabilities = capabilities_of(bench.host, bench.engine, cells, bench.interpreter)
    past = _past_seconds(bench, workload)
    plan = make_plan(cells, workload, repeats, capabilities, past, named=named, goal=goal, controls=controls)
    return PreparedCampaign(plan, capabilities, bench, matrix)


def _past_seconds(bench: Bench, workload: Workload) -> dict[str, list[float]]:
    """The seconds of completed runs of the very same work on this host, by cell; none of data that is not made yet."""
    data = bench.data or synthetic_place(workload)
    if not data.is_file():
        return {}
    past: dict[str, list[float]] = {}
    known = ("completed", workload_hash(workload, file_hash(data)), bench.host.fingerprint)
    for row in Index(bench.results).rows():
        if (row.outcome, row.workload_hash, row.host_fingerprint) == known and not row.imported:
            past.setdefault(row.cell, []).append(row.seconds)
    return past
