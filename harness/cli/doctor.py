"""`matrix doctor`: examines the machine."""

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby

import click
from rich.markup import escape
from rich.text import Text

from harness.base.command_words import PROGRAM
from harness.base.errors import NoSpaceError, UserError
from harness.cli.by_make import is_by_make, with_make
from harness.cli.shared import Settings, as_json, as_typed, known, out, pass_settings, print_json
from harness.doctor.ask import ask
from harness.doctor.checks import examine
from harness.doctor.checks.system import foreign_system
from harness.doctor.finding import Finding, Level
from harness.doctor.read import read_machine
from harness.evidence.gpus.health_log import unhealthy_gpus
from harness.host.disk_use import require_room
from harness.host.fingerprint import machine_of
from harness.screen.fitted import print_folded

# Matches `matrix` in a fix, which is a whole command without backquotes; not after sudo, since root has another PATH.
WHOLE = rf"(?<!sudo ){re.escape(PROGRAM)}"

# Width of the columns before the text of a finding and before its reason, in characters.
INDENTATION = 8
WORST_FIRST: tuple[Level, ...] = ("problem", "warning", "note", "ok")
COLOURS = {"problem": "red", "warning": "yellow", "note": "cyan", "ok": "green"}


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also show the checks that passed.")
@as_json
@pass_settings
def doctor(settings: Settings, everything: bool, as_json: bool) -> None:
    """Look at this machine before anything runs: devices, driver, PCIe, Docker, disk; say what to fix, and how.

    Every finding says what was found, why it matters, and the one command that fixes it. Nothing is changed; a file of
    32 MiB is written for a moment to see how fast the disk is.

    Exit status: 0 when nothing is a problem (there may be warnings), 1 when something is.
    """
    findings = _look(settings)
    is_wrong = any(finding.level == "problem" for finding in findings)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        for line in map(Text.from_markup, finding_lines(findings, everything=everything)):
            print_folded(out, line, INDENTATION, command="fix: ")
        said = "Next, once these problems are solved" if is_wrong else "Next"
        follows = settings.invocation.command("doctor" if is_wrong else "run")
        if is_by_make():
            follows = "make doctor" if is_wrong else "make matrix-test"
        if not is_wrong and (begun := _begun(settings)):
            follows = begun
        out.print(f"{said}: {follows}", soft_wrap=True, highlight=False, markup=False)
    sys.exit(is_wrong)


def _begun(settings: Settings) -> str | None:
    """Return the command that continues unfinished work on this host; None when there is none or it cannot be read."""
    # Imported here because only a host without problems needs it.
    from harness.report.continuation import continuation  # noqa: PLC0415

    with suppress(UserError, OSError):
        begun = continuation(settings.results, machine_of(settings.root), settings.invocation)
        return begun.command if begun else None
    return None


def _look(settings: Settings) -> tuple[Finding, ...]:
    if foreign := foreign_system(platform.system()):
        return (foreign,)
    known("default", settings.matrix.selections, "selection")
    machine = read_machine(settings.matrix, settings.root)
    unhealthy = unhealthy_gpus(settings.results, machine.host)
    gpus = tuple(replace(gpu, unhealthy=unhealthy.get(gpu.facts.index)) for gpu in machine.gpus)
    full = None
    try:
        require_room(settings.results.runs)
    except NoSpaceError as error:
        full = str(error)
    return examine(ask(replace(machine, gpus=gpus, results_full=full), settings.matrix))


def finding_lines(findings: Sequence[Finding], *, everything: bool) -> Iterator[str]:
    """Yield the findings as lines of rich markup, the worst first; without `everything` only count the fine ones."""
    for finding in sorted(findings, key=lambda f: WORST_FIRST.index(f.level)):
        if finding.level == "ok" and not everything:
            continue
        yield f"[{COLOURS[finding.level]}]{finding.level:8}[/]{escape(as_typed(f'{finding.check}: {finding.what}'))}"
        for title, text in (("why", as_typed(finding.why)), ("fix", as_typed(finding.fix or "", WHOLE))):
            if text:
                yield escape(f"        {title}: {text}")
    fine = sum(
        all(finding.level == "ok" for finding in of_check)
        for _, of_check in groupby(findings, key=lambda finding: finding.check)
    )
    if not everything:
        yield with_make(f"{fine} check{' is' if fine == 1 else 's are'} fine; --all shows them")
