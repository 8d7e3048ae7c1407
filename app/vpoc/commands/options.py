"""Options that several commands share."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

IN_FILE = click.Path(path_type=Path)
"""A path that the command opens itself, so that its one-line errors are the same everywhere."""

SEED = click.IntRange(0, 2**63 - 1)
"""What torch takes as a seed."""
LARGEST_COUNT = 2**31 - 1


class FiniteRange(click.FloatRange):
    """A number in a range; click's own type lets NaN pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """`value` as a float; click's usage error when it is NaN or outside the range."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


DATA = click.option("--data", type=IN_FILE, required=True, help="Merged CSV, as `vpoc merge` or `vpoc synth` write it.")
WARM_UP = click.option(
    "--warm-up",
    type=click.IntRange(min=20),
    default=60,
    help="Complete sessions at the start of the file that only feed the averages.",
)
ROWS = click.option(
    "--rows",
    type=click.Choice(["bar", "session"]),
    default="bar",
    help="One row per bar of regular hours, as of its end, or one per session, as of 17:00 New York.",
)
DATA_FRACTION = click.option(
    "--data-fraction",
    type=FiniteRange(0, 1, min_open=True),
    default=1.0,
    help="Most recent share of the sessions after the warm-up to use.",
)
CHUNK_SIZE = click.option(
    "--chunk-size",
    type=click.IntRange(min=1),
    default=16,
    help="Sessions in memory at a time while profiles are computed; any value gives the same answer.",
)
RUN_DIR = click.option(
    "--run-dir",
    type=IN_FILE,
    help="Folder for progress-0.jsonl and result.json, for a program that watches. An old result.json in it is removed "
    "at the start; progress is appended, so that `vpoc features` and `vpoc train` can share a folder.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def together(options: Sequence[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    """All of `options` as one decorator, shown in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
