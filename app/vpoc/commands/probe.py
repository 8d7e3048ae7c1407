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
"""Lines of stderr shown for a broken check.

JSON has more, and for a check that hung all stacks are shown here as well.
"""


@click.command("probe")
@DEVICE_OPTION
@click.option(
    "--check",
    "names",
    type=click.Choice([check.name for check in ALL_CHECKS]),
    multiple=True,
    metavar="NAME",
    help="Run only this check; can be given several times. --list names them.  [default: all]",
)
@click.option(
    "--limit-scale",
    type=FiniteRange(0.01, 100),
    default=1.0,
    help="Multiplies the limit of every check; for a slow machine or a cold disk.",
)
@click.option(
    "--spare",
    type=FiniteRange(0, 0.9),
    help="Share of a GPU's memory that the checks of memory leave free.  [default: 0.25 where a screen is attached, "
    "else 0.1]",
)
@click.option("--list", "only_list", is_flag=True, help="List the checks and what they show; run none.")
@JSON_OPTION
def probe_command(
    device: str, names: Sequence[str], limit_scale: float, spare: float | None, only_list: bool, as_json: bool
) -> int:
    """Find the check at which a stack breaks.

    Runs short checks of torch and the device, from the import to several GPUs that work together. Each has its own
    process and time limit; numbers are compared with known ones; a broken check does not end the probe.

    \b
    vpoc probe --device cuda
    vpoc probe --check attention-backward --check all-reduce

    Exit status: 0 all checks passed or were not applicable, 1 one broke, 3 the device is not there, 130 or 143
    interrupted.
    """  # noqa: D301 - click needs the character itself
    checks = [check for check in ALL_CHECKS if check.name in names or not names]
    if only_list:
        _list(checks, limit_scale, as_json)
        return 0
    return run_probe(checks, device, limit_scale, as_json, spare)


def run_probe(
    checks: Sequence[Check], device: str, limit_scale: float, as_json: bool, spare: float | None = None
) -> int:
    """Run the checks, print their results, and return the exit status.

    Raises Interrupted, after the results so far were printed.
    """
    results: list[CheckResult] = []
    with noted() as interruption:
        for result in run_checks(
            checks, device, limit_scale, interruption.came, lambda check: _announce(checks, check), spare
        ):
            _clear()
            results.append(result)
            if not as_json:
                _show(result)
    _clear()
    if as_json:
        click.echo(json.dumps(_document(results, device, limit_scale, interruption.name()), indent=2))
    elif interruption.signum is None:
        click.echo(conclusion(results, checks, device))
    if interruption.signum is not None:
        raise Interrupted(interruption.signum)
    return exit_code(results)


def _document(
    results: Sequence[CheckResult], device: str, limit_scale: float, interrupted_by: str | None
) -> dict[str, Any]:
    return {
        "schema": 2,
        "device": device,
        "limit_scale": limit_scale,
        "interrupted_by": interrupted_by,
        "breaks_at": next((result.check for result in results if result.broken), None),
        "checks": [asdict(result) for result in results],
    }


def _list(checks: Sequence[Check], limit_scale: float, as_json: bool) -> None:
    if as_json:
        facts = [
            {"check": check.name, "shows": check.shows, "limit_s": check.limit_s * limit_scale} for check in checks
        ]
        click.echo(json.dumps({"schema": 2, "checks": facts}, indent=2))
        return
    for check in checks:
        click.echo(f"{check.name:<19} {check.limit_s * limit_scale:>5g} s  {check.shows}")


def _show(result: CheckResult) -> None:
    click.echo(f"{result.check:<19} {result.outcome:<12} {result.seconds:>6.1f} s  {result.detail}")
    if result.broken:
        for line in result.stderr if result.outcome == HUNG else result.stderr[-STDERR_LINES:]:
            click.echo(f"    {line}")


def _announce(checks: Sequence[Check], check: Check) -> None:
    if sys.stderr.isatty():
        click.echo(f"{checks.index(check) + 1}/{len(checks)} {check.name} ...", err=True, nl=False)


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)
