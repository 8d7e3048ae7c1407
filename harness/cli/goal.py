"""The options of `matrix run` and `matrix plan` that leave open how many runs are made."""

import re
from typing import Any

import click

from harness.base.durations import LONGEST_SECONDS
from harness.base.errors import UserError
from harness.cli.shared import FiniteRange, Settings, err
from harness.matrix.workload_options import STANDARD_WORKLOAD
from harness.matrix.workloads import Workload
from harness.search.goal import Goal

UNIT_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class Duration(click.ParamType[float]):
    """A time such as `8h`, `90m` or `1h30m`, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; the shortest time accepted is one second."""
        if isinstance(value, float):
            return value
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", value)
        seconds = sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)
        if "".join(number + unit for number, unit in parts) != value or not 1 <= seconds <= LONGEST_SECONDS:
            self.fail(f"{value!r} is not a time from 1s to 1000d; write 8h, 90m or 1h30m", param, ctx)
        return seconds


def goal_options(command: Any) -> Any:
    """Add the options that state the goal of a search."""
    for option in (
        click.option(
            "--until", type=click.Choice(["known-good"]), help="Look for one known-good cell, the most promising first."
        ),
        click.option("--all", "every", is_flag=True, help="Run until every cell is shown to be known-good, or not."),
        click.option(
            "--confidence",
            type=FiniteRange(0, 1, min_open=True, max_open=True),
            help="With --all: confidence of each claim (default: the matrix file's).",
        ),
        click.option(
            "--budget",
            type=Duration(),
            help="Time for all runs, e.g. 8h (default in stages: 10h; otherwise only with --until or --all).",
        ),
    ):
        command = option(command)
    return command


def goal_of(
    settings: Settings, until: str | None, *, every: bool, confidence: float | None, budget: float | None
) -> Goal | None:
    """Return the goal that these options describe; None when neither --until nor --all is given.

    Raises:
        UserError: when the options contradict each other.
    """
    if until and every:
        raise UserError("--until looks for one cell and --all settles every one; give one of them")
    if confidence is not None and not every:
        raise UserError("--confidence goes with --all; what --until claims is set in the matrix file (`verdicts:`)")
    if not until and not every:
        if budget is not None:
            raise UserError(
                "--budget limits a search, but this command makes a fixed number of runs; add --until known-good or "
                "--all, or leave out --budget"
            )
        return None
    verdicts = settings.matrix.verdicts
    return Goal(
        verdicts.known_good,
        confidence or verdicts.confidence,
        every,
        budget=budget,
        mtbf_hours=verdicts.mtbf_hours.known_good,
        boots=verdicts.known_good_boots,
    )


def workload_for_tags(settings: Settings, workload: Workload, *, named: bool) -> Workload:
    """Return the workload to reach a goal with, and say which: `standard` if the selection's does not qualify."""
    if workload.qualifies_for_promotion:
        return workload
    standard = settings.matrix.workloads.get(STANDARD_WORKLOAD)
    if named or standard is None or not standard.qualifies_for_promotion:
        err.print(f"Workload {workload.name} does not qualify for promotion: its runs show too little.", soft_wrap=True)
        return workload
    err.print(
        f"Workload {workload.name} does not qualify for promotion; {STANDARD_WORKLOAD} is run instead "
        "(or give --workload).",
        soft_wrap=True,
    )
    return standard.model_copy(update={"lookback": workload.lookback})
