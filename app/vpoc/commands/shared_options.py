"""Options that several commands share."""

import math
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from vpoc.errors import UserError
from vpoc.features.feature_options import CHOICES, RTH_CLOSES, FeatureOptions
from vpoc.files import NO_FILE

Function = TypeVar("Function", bound=Callable[..., Any])


class _FilePath(click.Path):
    """A path that is not that of a pipe or a device, which would be waited for, also after Ctrl-C."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return `value` as a path; UserError for a pipe or a device."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        # The command itself reports a path that cannot be looked at.
        with suppress(OSError):
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(f"{path}: {NO_FILE}")
        return path


IN_FILE = _FilePath(path_type=Path)
"""A path that the command opens itself, so that its one-line errors are the same everywhere."""

SEED = click.IntRange(0, 2**63 - 1)
"""The seeds that torch accepts."""
LARGEST_COUNT = 2**31 - 1
MOST_EPOCHS = 5_000
"""A result has the losses of each epoch, and is read up to a size only."""


class FiniteRange(click.FloatRange):
    """A finite number in a range; click's own type accepts NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return `value` as a float; click's usage error if it is not finite or outside the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def _rule_names(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of rules of the gate; click's usage error if one is unknown."""
    if not value:
        return value
    from vpoc.data.checks.plausibility_rules import RULE_NAMES  # noqa: PLC0415

    named = tuple(name.replace("-", "_") for name in value)
    for name in named:
        if name not in RULE_NAMES:
            raise click.BadParameter(f"{name!r} is none of {', '.join(RULE_NAMES)}")
    return named


def in_file_option(name: str, **settings: Any) -> Callable[[Function], Function]:
    """Return an option that names one input file; several are a usage error, where click would take the last."""

    def only(ctx: click.Context, _param: click.Parameter, value: tuple[Path, ...]) -> Path | None:
        if len(value) > 1:
            raise click.UsageError(f"{name} takes one file, {len(value)} are given (joining: docs/data.md)", ctx)
        return value[0] if value else None

    return click.option(name, type=IN_FILE, multiple=True, callback=only, **settings)


DATA_OPTION = in_file_option("--data", required=True, help="Merged CSV, as `vpoc merge` or `vpoc synth` write it.")
FEATURES_FILE_OPTION = click.option(
    "--features",
    type=IN_FILE,
    help="Features of the same data and options, made before by `vpoc features`; without it they are computed first.",
)
LOOKBACK_OPTION = click.option(
    "--lookback",
    type=click.IntRange(min=20),
    default=60,
    help="Complete sessions at the start of the file that only feed what looks back; naked levels look back over as "
    "many, 60 at most.",
)
TARGET_OPTION = click.option(
    "--target",
    type=click.Choice(["up_30", "prior_vpoc_touched", "next_up", "next_vpoc_touched"]),
    metavar="NAME",
    help="What to predict: up_30 or prior_vpoc_touched for bar rows, next_up or next_vpoc_touched for session rows.  "
    "[default: up_30 / next_vpoc_touched]",
)
ROWS_OPTION = click.option(
    "--rows",
    type=click.Choice(["bar", "session"]),
    default="bar",
    help="One row per bar of regular hours, as of its end, or one per session, as of 17:00 New York.",
)
DATA_FRACTION_OPTION = click.option(
    "--data-fraction",
    type=FiniteRange(0, 1, min_open=True),
    default=1.0,
    help="Most recent share of the sessions after the lookback to use.",
)
AS_OF_OPTION = click.option(
    "--as-of",
    type=click.Choice(CHOICES["as_of"]),
    default="close",
    help="As-of time of a session row: at 17:00 of its day, or with the first price of the next regular hours.",
)
PLACEMENT_OPTION = click.option(
    "--placement",
    type=click.Choice(CHOICES["placement"]),
    default="uniform",
    help="Where the volume of a bar is put within its price range; ticks is for files with a row per trade.",
)
VALUE_AREA_OPTION = click.option(
    "--value-area",
    type=click.Choice(CHOICES["value_area"]),
    default="two_row",
    help="How the value area grows: by pairs of rows (Dalton, CBOT) or by single rows.",
)
RTH_CLOSE_OPTION = click.option(
    "--rth-close",
    type=click.Choice(list(RTH_CLOSES)),
    default="16:00",
    help="New York time at which regular hours end on full days.",
)
ROLLS_OPTION = click.option(
    "--rolls",
    metavar="[auto|column|calendar|none|FILE]",
    default="auto",
    help="Where the contract changes; nothing is compared across: where the symbol does, on the Monday of CME's "
    "expiry weeks, nowhere, or on the dates of a CSV file with a column `date`. auto: by the symbol if it names "
    "contracts, else by the calendar.",
)
VPOC_PATH_OPTION = click.option(
    "--vpoc-path",
    type=click.Choice(["cpu", "naive", "chunked", "preallocated", "pooled"]),
    default="cpu",
    help="Also compute the profiles of sessions on --device with torch, along one of these paths, and stop when they "
    "differ from the CPU's; cpu: do not. With `vpoc train --features`, that was done then or not.",
)
DEVICE_OPTION = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    envvar="VPOC_DEVICE",
    show_envvar=True,
    help="Where tensors are; cuda is also the name for AMD GPUs. Nothing falls back: exit 3 when it is not there.",
)
CHUNK_SIZE_OPTION = click.option(
    "--chunk-size",
    type=click.IntRange(min=1),
    default=64,
    help="Sessions in memory at a time while profiles are computed; any value gives the same answer.",
)
RUN_DIR_OPTION = click.option(
    "--run-dir",
    type=IN_FILE,
    help="Folder for a program that watches: of each rank progress-0.jsonl, stacks-0.txt, position-0.bin, and "
    "result.json. An old result.json in it is removed at the start; progress is appended, so that `vpoc features` and "
    "`vpoc train` can share a folder.",
)
ACCEPT_OPTION = click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="RULE",
    callback=_rule_names,
    help="Accept data that breaks this rule of `vpoc check`; can be given several times.",
)
FORCE_OPTION = click.option("--force", is_flag=True, help="Replace OUTPUT even if something else wrote it.")
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def feature_options(chosen: dict[str, Any]) -> FeatureOptions:
    """Return the options of features, from the options of a command."""
    if chosen["as_of"] == "open" and chosen["rows"] == "bar":
        raise UserError("--as-of open is for --rows session: a bar row is always as of the bar's end")
    return FeatureOptions(**{f.name: chosen[f.name] for f in fields(FeatureOptions)})


def together(options: Sequence[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    """Return one decorator that applies all `options`, shown in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


FEATURE_OPTIONS = together(
    [
        ROWS_OPTION,
        AS_OF_OPTION,
        LOOKBACK_OPTION,
        DATA_FRACTION_OPTION,
        PLACEMENT_OPTION,
        VALUE_AREA_OPTION,
        RTH_CLOSE_OPTION,
        ROLLS_OPTION,
        CHUNK_SIZE_OPTION,
        VPOC_PATH_OPTION,
        DEVICE_OPTION,
        ACCEPT_OPTION,
    ]
)
"""Options that decide which features are computed, and where."""
