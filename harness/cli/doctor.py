"""The command that looks at the machine."""

import platform
import sys
from dataclasses import asdict
from pathlib import Path

import click

from harness.cli.shared import Settings, as_json, known, out, pass_settings, print_json
from harness.doctor import Finding, examine, foreign_system, read_machine
from harness.doctor.ask import ask
from harness.doctor.show import lines


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also show what is fine.")
@click.option("--root", type=click.Path(path_type=Path, exists=True, file_okay=False), default="/", hidden=True)
@as_json
@pass_settings
def doctor(settings: Settings, everything: bool, root: Path, as_json: bool) -> None:
    """Look at this machine before anything runs: devices, driver, PCIe, Docker, disk; say what to mend, and how.

    Every finding says what was found, why it matters, and the one command that mends it. Nothing is changed; a file of
    32 MiB is written for a moment to see how fast the disk is.

    Exit status: 0 when nothing is a problem (there may be warnings), 1 when something is.
    """
    findings = _look(settings, root)
    if as_json:
        print_json({"schema": 1, "findings": [asdict(finding) for finding in findings]})
    else:
        for line in lines(findings, everything=everything):
            out.print(line, soft_wrap=True)
    sys.exit(any(finding.level == "problem" for finding in findings))


def _look(settings: Settings, root: Path) -> tuple[Finding, ...]:
    if foreign := foreign_system(platform.system()):
        return (foreign,)
    known("default", settings.matrix.selections, "selection")
    machine = read_machine(settings.matrix, root)
    return examine(ask(machine, settings.matrix) if root == Path("/") else machine)
