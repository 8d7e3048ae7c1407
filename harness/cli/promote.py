"""The commands on known-good tags: `matrix promote`, `matrix demote` and `matrix tags`."""

import time

import click
from rich.table import Table

from harness.base.durations import DAY, day_of
from harness.base.interrupts import interruptible
from harness.cli.completion import complete_cells
from harness.cli.shared import (
    Settings,
    as_json,
    as_typed,
    err,
    known,
    out,
    pass_settings,
    print_json,
    print_lines,
    worded,
)
from harness.environments.docker.own_images import is_own
from harness.registry.tags import tag_commands
from harness.registry.tags.known_good_tags import ALIAS
from harness.registry.tags.promotions import KnownGood, TagMove
from harness.registry.tags.tag_commands import TagState
from harness.report.words import at_least, share
from harness.screen.fitted import print_table, wide_option
from harness.screen.steps import Steps
from harness.training.expect import USUAL_HOURS, expect_of_tag

SHORT = 19
registry_option = click.option(
    "--registry",
    envvar="MATRIX_REGISTRY",
    show_envvar=True,
    metavar="HOST[/PATH]",
    help="Registry, e.g. ghcr.io/me (default: this host alone).",
)
replace_option = click.option(
    "--replace",
    metavar="DIGEST",
    help="Digest that the tag points to now, to take back a tag that somebody else moved.",
)


@click.command()
@click.argument("cell", required=False, shell_complete=complete_cells)
@registry_option
@replace_option
@click.option("--dry-run", is_flag=True, envvar="DRY_RUN", help="Print what would be promoted; change nothing.")
@as_json
@pass_settings
def promote(
    settings: Settings, cell: str | None, registry: str | None, replace: str | None, dry_run: bool, as_json: bool
) -> None:
    """Move the tags known-good-SCOPE to the images that qualify for them (of CELL alone, if given).

    A cell is promoted when runs of that very image, in containers and with a workload that qualifies for promotion,
    have the verdict `known-good`.
    With --registry the image and its evidence are pushed there, with the credentials of `docker login`.
    """
    matrix = settings.matrix
    if cell is not None:
        known(cell, matrix.cells, "cell")
    with interruptible(), Steps(err) as steps:
        promoted = tag_commands.promote(
            settings.results,
            matrix,
            cell,
            registry,
            time.time(),
            steps.step,
            replace=replace,
            dry_run=dry_run,
            root=settings.root,
        )
    if as_json:
        print_json({"promoted": [evidence.model_dump(mode="json", by_alias=True) for evidence in promoted]})
    else:
        print_lines([_promoted(evidence, "would be" if dry_run else "is") for evidence in promoted])


@click.command()
@click.argument("tag")
@click.option("--reason", required=True, help="Reason, kept in the tag's history.")
@registry_option
@replace_option
@as_json
@pass_settings
def demote(settings: Settings, tag: str, reason: str, registry: str | None, replace: str | None, as_json: bool) -> None:
    """Remove a known-good TAG on this host, and in the registry if one is given."""
    reason = worded("--reason", reason)
    places = tag_commands.demote(settings.results, tag, reason, registry, time.time(), replace=replace)
    if as_json:
        print_json({"tag": tag, "reason": reason, "demoted_in": places})
    else:
        print_lines([f"{tag} is demoted in {place}" for place in places])


@click.command()
@click.argument("tag", required=False)
@registry_option
@wide_option
@as_json
@pass_settings
def tags(settings: Settings, tag: str | None, registry: str | None, wide: bool, as_json: bool) -> None:
    """List the known-good tags in force, and whether this host may use them.

    With TAG, list every move of that tag.
    """
    if tag is not None:
        moves = tag_commands.tag_history(settings.results_to_read, tag, registry)
        if as_json:
            print_json({"moves": [move.model_dump(mode="json", by_alias=True) for move in moves]})
        else:
            print_lines([_moved(move) for move in moves])
        return
    states = tag_commands.tag_states(settings.results_to_read, settings.matrix, registry, time.time(), settings.root)
    if as_json:
        print_json({"tags": [state.plain for state in states]})
    elif states:
        print_table(
            out, _table(states), ("image", "days old", "starts above", "shown", "scope"), "on this host", wide=wide
        )
        for state in states:
            told = expect_of_tag(state.evidence, USUAL_HOURS)
            struck = [f"run {run} was struck out by hand: {why}" for run, why in state.evidence.struck.items()]
            for text in filter(None, [state.problem, *struck, told and told.in_words]):
                err.print(f"{state.evidence.tag}: {text}", markup=False, soft_wrap=True)
    else:
        out.print(as_typed("No known-good tag is in force; `matrix promote` makes one if a cell is known-good."))


def _promoted(evidence: KnownGood, is_: str) -> str:
    rate = f"starts above {at_least(evidence.low)} at {share(evidence.confidence)} confidence"
    best = f" as the best of {evidence.among}" if evidence.among > 1 else ""
    until = f"until {day_of(evidence.expires_at)}"
    if not is_own(evidence.image):
        until += f"; its image was not built here; `matrix verify {evidence.cell}` compares"
    return f"{evidence.tag} {is_} {evidence.cell}, {evidence.reference}: {evidence.shown}, {rate}{best}; {until}"


def _moved(move: TagMove) -> str:
    evidence = move.evidence
    why = move.reason or evidence.shown
    return f"{day_of(move.at)} {move.move} {evidence.cell} {evidence.target}: {why}"


def _table(states: list[TagState]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("tag", "scope", "cell", "image", "shown", "starts above", "days old", "on this host"):
        table.add_column(name)
    for state in states:
        evidence = state.evidence
        table.add_row(
            evidence.tag + (f" ({ALIAS})" if state.is_alias else ""),
            evidence.scope,
            evidence.cell,
            evidence.target[:SHORT],
            evidence.shown,
            at_least(evidence.low),
            f"{state.age_seconds / DAY:.0f}",
            f"not valid: {state.not_here}" if state.not_here else "valid",
        )
    return table
