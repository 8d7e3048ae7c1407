"""`vpoc probe`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from vpoc.commands.shared_options import DEVICE_OPTION, JSON_OPTION, FiniteRange
from vpoc.errors import Interrupted
from vpoc.probes.all_checks import ALL_CHECKS
from vpoc.probes.check import HUNG, Check, CheckResult
from vpoc.probes.interruption import noted
from vpoc.probes.run_all import conclusion, exit_code, run_checks

STDERR_LINES = 12
"""Shown of a broken rung; JSON has more, and all stacks of a rung that hung are shown here too."""


@click.command("probe")
@DEVICE_OPTION
@click.option(
    "--rung",
    "names",
    type=click.Choice([rung.name for rung in ALL_CHECKS]),
    multiple=True,
    metavar="NAME",
    help="Try only this rung; may be given several times. --list names them.  [default: all]",
)
@click.option(
    "--limit-scale",
    type=FiniteRange(0.01, 100),
    default=1.0,
    help="Multiplies the limit of every rung; for a slow machine or a cold disk.",
)
@click.option("--list", "only_list", is_flag=True, help="List the rungs and what they show; try none.")
@JSON_OPTION
def probe_command(device: str, names: Sequence[str], limit_scale: float, only_list: bool, as_json: bool) -> int:
    """Find the rung at which a stack breaks.

    Climbs a ladder of short checks of torch and the device, from the import to several GPUs at work together. Each has
    a process and a limit of its own; numbers are compared with known ones; a broken rung does not end the climb.

    \b
    vpoc probe --device cuda
    vpoc probe --rung attention-backward --rung all-reduce

    Exit status: 0 all rungs passed or made no sense here, 1 one broke, 3 the device is not there, 130 or 143
    interrupted.
    """  # noqa: D301 - click needs the character itself
    rungs = [rung for rung in ALL_CHECKS if rung.name in names or not names]
    if only_list:
        _list(rungs, limit_scale, as_json)
        return 0
    return run_probe(rungs, device, limit_scale, as_json)


def run_probe(rungs: Sequence[Check], device: str, limit_scale: float, as_json: bool) -> int:
    """Try the rungs, print what came of them, and return the exit status.

    Raises Interrupted, after what is known was printed.
    """
    trials: list[CheckResult] = []
    with noted() as interruption:
        for trial in run_checks(rungs, device, limit_scale, interruption.came, lambda rung: _announce(rungs, rung)):
            _clear()
            trials.append(trial)
            if not as_json:
                _show(trial)
    _clear()
    if as_json:
        click.echo(json.dumps(_document(trials, device, limit_scale, interruption.name()), indent=2))
    elif interruption.signum is None:
        click.echo(conclusion(trials, rungs, device))
    if interruption.signum is not None:
        raise Interrupted(interruption.signum)
    return exit_code(trials)


def _document(
    trials: Sequence[CheckResult], device: str, limit_scale: float, interrupted_by: str | None
) -> dict[str, Any]:
    return {
        "schema": 1,
        "device": device,
        "limit_scale": limit_scale,
        "interrupted_by": interrupted_by,
        "breaks_at": next((trial.rung for trial in trials if trial.broken), None),
        "rungs": [asdict(trial) for trial in trials],
    }


def _list(rungs: Sequence[Check], limit_scale: float, as_json: bool) -> None:
    if as_json:
        facts = [{"rung": rung.name, "shows": rung.shows, "limit_s": rung.limit_s * limit_scale} for rung in rungs]
        click.echo(json.dumps({"schema": 1, "rungs": facts}, indent=2))
        return
    for rung in rungs:
        click.echo(f"{rung.name:<19} {rung.limit_s * limit_scale:>5g} s  {rung.shows}")


def _show(trial: CheckResult) -> None:
    click.echo(f"{trial.rung:<19} {trial.outcome:<12} {trial.seconds:>6.1f} s  {trial.detail}")
    if trial.broken:
        for line in trial.stderr if trial.outcome == HUNG else trial.stderr[-STDERR_LINES:]:
            click.echo(f"    {line}")


def _announce(rungs: Sequence[Check], rung: Check) -> None:
    if sys.stderr.isatty():
        click.echo(f"{rungs.index(rung) + 1}/{len(rungs)} {rung.name} ...", err=True, nl=False)


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)
