"""Cells, plans and campaigns as plain values, for `--json`."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from harness.base.urls import without_credentials
from harness.campaign.bench.plan import Plan
from harness.campaign.run_campaign import CampaignResult
from harness.cli.shared import error_object
from harness.environments.capabilities import Capabilities
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.verdict import Verdict
from harness.host.disk_use import MOST_ENTRIES
from harness.matrix.cells import Cell
from harness.matrix.workloads import Workload


def describe_cell(cell: Cell) -> dict[str, Any]:
    """Return a cell as plain values."""
    preset = cell.preset.model_dump(exclude={"name"})
    places = {
        key: url and without_credentials(url) for key, url in (("mirror", cell.stack.mirror), ("pypi", cell.stack.pypi))
    }
    return {
        "id": cell.id,
        "stack": cell.stack.model_dump() | places,
        "preset": {"name": cell.preset.name, **preset},
    } | {"excluded": cell.excluded}


def describe_workload(workload: Workload) -> dict[str, Any]:
    """Return a workload as plain values."""
    return {**workload.model_dump(), "qualifies_for_promotion": workload.qualifies_for_promotion}


def describe_plan(plan: Plan, capabilities: Capabilities) -> dict[str, Any]:
    """Return a plan as plain values."""
    return {
        "host": capabilities.sentence,
        "workload": plan.workload.model_dump(),
        "runs": [{"cell": planned.cell.id, "repeat": planned.repeat, "gpus": planned.gpus} for planned in plan.runs],
        "left_out": [{"cell": skipped.cell.id, "reason": skipped.reason} for skipped in plan.skipped],
        "indexes": plan.indexes,
        "download_gb": plan.download_gb,
        "disk_gb": plan.disk_gb,
        "place": plan.place,
        "free_gb": plan.free_gb,
        "seconds_at_most": plan.seconds_at_most,
        "seconds_expected": plan.seconds_expected,
        "limits": {"pids": plan.pids, "disk_bytes": plan.run_bytes, "files": MOST_ENTRIES},
        "controls": plan.controls,
        "side_by_side": plan.side_by_side,
        "goal": asdict(plan.goal) if plan.goal else None,
        "pythons_to_fetch": plan.pythons_to_fetch,
    }


def describe_campaign(result: CampaignResult, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return how a campaign stands as plain values."""
    isolation = result.isolation and result.isolation.model_dump(mode="json", by_alias=True)
    error = None if result.error is None else error_object(getattr(result.error, "code", "system"), str(result.error))
    plain = {**asdict(replace(result, isolation=None, error=None)), "isolation": isolation, "error": error}
    return {**plain, "verdicts": [of_results.describe_verdict(one) for one in verdicts]}
