"""Finds out by runs on this host which variables of a cell's preset matter."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from typing import Any

from harness.base.errors import UserError
from harness.base.storage import json_hash
from harness.campaign.bench import Bench, Display
from harness.campaign.commands import settle
from harness.campaign.plan import PlannedRun
from harness.campaign.trials import TaintedError, Trials
from harness.matrix.cells import Cell, Workload
from harness.matrix.variants import variable_names, variant
from harness.search.minimise import Minimum, Variables, minimise


def minimise_cell(
    bench: Bench, placed: PlannedRun, workload: Workload, control: Cell, max_runs: int, display: Display
) -> Minimum:
    """Search the preset of the cell of `placed`; with the same question again, go on where that stopped.

    The records are the memory: what the search asks for follows from the answers, so the runs it asked for before are
    found by their ids. More runs may be allowed later.

    Raises:
        UserError: when the preset sets nothing, another process is at it, or the host cannot go on.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    cell = placed.cell
    names = variable_names(cell.preset)
    if not names:
        raise UserError(f"cell {cell.id} sets no variables: there is nothing to leave out")
    settle(bench, display)
    display.preparing(cell.stack)
    environment = bench.environment(cell, display.step)
    data = bench.data_of(workload, environment)
    run = bench.run(placed, "minimise", workload)
    what = [cell.id, environment.hash(cell.preset), run.workload_hash, bench.host.fingerprint, run.gpus]
    campaign = f"minimise-{cell.id[:60]}-{json_hash([*what, data.sha256, environment.image is None])[:8]}"
    with _alone(bench, campaign):
        while True:
            trials = Trials(bench, workload, placed, display, campaign, max_runs)
            positions = count(1)

            def passed(chosen: Variables, trials: Trials = trials, positions: Iterator[int] = positions) -> bool:
                return trials.passed(variant(cell, chosen) if chosen else control, next(positions))

            try:
                return minimise(names, passed, max_runs, campaign, display.step)
            except TaintedError:
                display.problem("a run that counted turned out to be tainted by a sick GPU; the search takes it back")


def describe_minimum(cell: Cell, control: Cell, found: Minimum) -> dict[str, Any]:
    """What a search found, as plain values."""
    return {
        "cell": cell.id,
        "control": control.id,
        "of": variable_names(cell.preset),
        "cell_of_variables": variant(cell, found.variables).id if found.variables else None,
        **asdict(found),
        "variables": sorted(found.variables),
        "largest_difference": found.largest_difference,
    }


@contextmanager
def _alone(bench: Bench, campaign: str) -> Iterator[None]:
    file = bench.results.folder / f".{campaign}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{campaign}: another process is at it; wait for it") from None
        yield
