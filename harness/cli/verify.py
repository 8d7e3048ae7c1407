"""`matrix verify`: rebuilds or checks an image, and prints the differences."""

import sys
from dataclasses import asdict

import click

from harness.base.interrupts import interruptible
from harness.base.text import safe_text
from harness.cli.shared import Settings, as_json, err, pass_settings, print_json, print_lines
from harness.environments.docker.images import BASE_NAME, Image, repository_in
from harness.environments.docker.verify_image import DIFFERENT, EQUAL, find_to_verify, verify_by_rebuilding
from harness.host.engine import Engine
from harness.registry.attestations.check import check_offline
from harness.registry.image_commands import the_engine
from harness.screen.steps import Steps

SHOWN = 40


@click.command()
@click.argument("image")
@click.option("--offline", is_flag=True, help="Build nothing: check lock, installed packages and signatures.")
@click.option(
    "--registry",
    envvar="MATRIX_REGISTRY",
    metavar="HOST[/PATH]",
    help="With --offline: look there for signatures.",
)
@as_json
@pass_settings
def verify(settings: Settings, image: str, offline: bool, registry: str | None, as_json: bool) -> None:
    """Build an image again from what its labels name, and say whether it is the same, or which files differ.

    IMAGE is a cell, or a name or id that the engine knows. Source, lock and base are those that its labels name; for a
    revision other than this checkout's, run it in a checkout of that revision. The build uses no cache.

    With --offline nothing is built: the installed packages are compared with the lock, and the signed statements that
    were kept at a push or pull are compared with the image.

    Exit status: 0 the same, 1 something differs, 2 something to fix.
    """
    engine = the_engine()
    found = find_to_verify(engine, image)
    if offline:
        _check(settings, engine, found, registry, as_json=as_json)
        return
    with interruptible(), Steps(err) as steps:
        told = {**verify_by_rebuilding(engine, found, settings.matrix, steps.step), "base": found.labels.get(BASE_NAME)}
    if as_json:
        print_json(told)
    else:
        said = f"{image}: {_sentence(told)}{_manifests(told)}"
        print_lines([said, *(f"  {line}" for line in told["differences"][:SHOWN])])
        if (more := len(told["differences"]) - SHOWN) > 0:
            print_lines([f"  and {more} more; --json lists all"])
    sys.exit(1 if told["result"] == DIFFERENT else 0)


def _check(settings: Settings, engine: Engine, image: Image, registry: str | None, *, as_json: bool) -> None:
    repository = repository_in(registry) if registry else None
    with interruptible(), Steps(err) as steps:
        checks = check_offline(engine, image, settings.matrix, repository, steps.step)
    if as_json:
        print_json({"image": image.id, "checks": [asdict(check) for check in checks]})
    else:
        words = {True: "right", False: "WRONG", None: "not checked"}
        print_lines([f"{check.name}: {words[check.right]}: {check.detail}" for check in checks])
    sys.exit(1 if any(check.right is False for check in checks) else 0)


def _manifests(told: dict[str, object]) -> str:
    """Say in words how the manifests compare; empty if the engine has none, or if a list of differing files follows."""
    if told["result"] == DIFFERENT or told.get("same_manifest") is None:
        return ""
    if told["same_manifest"]:
        return f"; the manifest is the same, {told['image']}"
    return f"; the manifest is another, {told['image']} and {told['rebuilt']}: packed or labelled in another way"


def _sentence(told: dict[str, object]) -> str:
    of = f"of revision {told['revision']}" if told["revision"] else "of this source"
    # The base is not built again: what it contains is only as good as its name.
    of += f" on the base that it names, {safe_text(str(told['base']))}" if told["base"] else ""
    if told["result"] == EQUAL:
        return f"equal: all {told['layers']} layers are the same bytes when built again {of}"
    if told["result"] == DIFFERENT:
        return f"different from what is built again {of}:"
    same = f"{told['same_layers']} of {told['layers']} layers"
    return f"equal in content: names, modes, owners and bytes {of}; {same} are the same with the times of files, too"
