"""`matrix clean`: lists what stacks and programs occupy on disk, asks, and removes it."""

import sys
from dataclasses import asdict

import click

from harness.base.errors import NoEngineError
from harness.base.text import one_line
from harness.cli.shared import Settings, as_json, ask_user, err, pass_settings, print_json, warn
from harness.environments.clean import OF_ANOTHER, Made, bytes_to_go, made_by_stacks, remove
from harness.host.engine import find_engine
from harness.screen.steps import Steps
from harness.screen.terminal import echo

GB = 10**9


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@pass_settings
def clean(settings: Settings, *, yes: bool, as_json: bool) -> None:
    """Remove this checkout's environments, copies of programs, and images without a known-good tag; asks first.

    Wheels, records, locks, and images that are tagged or in a registry stay: what is removed can be rebuilt from the
    local wheels. Images that another checkout built on the same engine stay, too, and all images while the engine does
    not answer. Nothing is removed while another command builds or uses these things. With --json nothing is removed
    without --yes.

    Exit status: 0 when everything was removed or there was nothing to remove, 1 when something could not be removed or
    the answer was no.
    """
    if settings.simulated:
        warn(["a simulated host has neither disk nor engine of its own: these are of this machine"])
    try:
        engine = find_engine()
    except NoEngineError as error:
        # It may have stopped because the disk is full.
        warn([f"images stay: {error}"])
        engine = None
    with Steps(err) as steps:
        # With many images on the engine, and files to be measured, this takes a while.
        steps.step("measuring environments, programs and images")
        all_found = made_by_stacks(engine)
    found = [one for one in all_found if one.kept != OF_ANOTHER]
    others = len(all_found) - len(found)
    chosen = [one for one in found if one.kept is None]
    if not as_json:
        for one in found:
            echo(_line(one))
        if others:
            echo(f"{others} more images of stacks on this engine were not made by this checkout; they stay")
        free = bytes_to_go(all_found) / GB
        echo(
            "wheels, records, images that are tagged or in a registry, and files that are in uv's cache, too, stay; "
            f"about {free:.1f} GB can go"
        )
        if chosen and not yes and not ask_user(f"Remove {len(chosen)} of {len(found)}?"):
            echo("Nothing was removed.", err=True)
            raise click.Abort
    done = dict(remove(chosen, engine)) if yes or not as_json else {}
    failed = {one: why for one, why in done.items() if why}
    if as_json:
        told = [{**asdict(one), "removed": one in done and one not in failed, "why": failed.get(one)} for one in found]
        print_json({"made": told, "images_of_others": others})
    for one, why in failed.items():
        echo(f"matrix: {one.kind} {one_line(one.name)} was not removed: {why}", err=True)
    sys.exit(1 if failed else 0)


def _line(one: Made) -> str:
    state = f"stays: {one.kept}" if one.kept else "would go"
    return f"{one.bytes / GB:8.1f} GB  {one.kind:<11}  {one_line(one.name)}  ({state})"
