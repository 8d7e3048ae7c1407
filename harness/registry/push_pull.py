"""Images to and from a registry. Credentials are the docker command's own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from harness.base.errors import NoAnswerError, UserError
from harness.base.files.storage import locked
from harness.base.time_limits import Look
from harness.environments.docker.images import (
    PREFIX,
    Image,
    cell_tag,
    check_is_of,
    find,
    repository_in,
    tag_name,
)
from harness.environments.docker.own_images import current_image
from harness.host.engine import Engine, Notify, engine_errors, follow_transfer, transfer_errors
from harness.matrix.cells import Cell
from harness.registry.kept_layers import LAYERS
from harness.registry.patience import patiently
from harness.registry.relay import RELAYED, Relay
from harness.registry.tags.promotions import KnownGood

# What engines say of a layer once a registry has it.
LAYER_IS_THERE = ("Pushed", "Layer already exists", "Already exists", "Mounted from")
# For an engine to learn the name of what it has, with all pauses of who is patient.
NAME_SECONDS = 180.0


def remote_name(registry: str, cell: Cell) -> str:
    """Return the name of a cell's image in a registry such as `ghcr.io/me`."""
    return f"{repository_in(registry)}:{tag_name(cell)}"


def built_image(engine: Engine, cell: Cell) -> Image:
    """Return the image of a cell as this checkout would build it.

    Raises:
        UserError: when it is not built.
    """
    image = current_image(engine, cell)
    if image is None:
        raise UserError(f"there is no image of {cell.id} for its current inputs; `matrix build {cell.id}` builds it")
    return image


def push_image(engine: Engine, image: str, name: str, notify: Notify) -> str:
    """Push an image under a name such as `ghcr.io/me/vpoc:cpu-plain`; return the digest of its manifest.

    The engine keeps account of the layers that the registry has: of a push that was cut short only the rest is sent.

    Raises:
        UserError: when the registry refuses it, or does not answer any more.
    """
    repository, tag = name.rsplit(":", 1)
    doing = f"pushing {name}"
    notify(doing)
    sent: set[str] = set()

    def attempt() -> str | None:
        with transfer_errors(doing):
            events = engine.patient.api.push(repository, tag, stream=True, decode=True)
            return follow_transfer(_noting_layers(events, sent), doing, notify)

    with engine_errors(doing):
        engine.client.api.tag(image, repository, tag)
    digest = patiently(attempt, lambda: len(sent), notify)
    if digest is None:
        raise UserError(f"{doing}: the engine gave no digest; `docker pull {name}` shows it")
    return digest


def pull(engine: Engine, cell: Cell, registry: str, digest: str | None, notify: Notify) -> Image:
    """Pull the image of a cell, by digest where one is given, and give it its local tag.

    Raises:
        UserError: when there is no such image, or it is of another cell.
    """
    name = remote_name(registry, cell)
    repository, tag = name.rsplit(":", 1)
    reference = f"{repository}@{digest}" if digest else name
    doing = f"pulling {reference}"
    # Not by its tag, which anybody may have moved meanwhile.
    image = find(engine, f"{repository}@{_bring(engine, repository, digest or tag, doing, notify)}")
    if image is None:
        raise UserError(f"{doing}: the image was pulled, and was removed before it could be used; pull it again")
    with engine_errors(doing):
        try:
            check_is_of(image, cell, reference)
        except UserError:
            engine.client.api.remove_image(reference)
            raise
        engine.client.api.tag(image.id, *cell_tag(cell).rsplit(":", 1))
    return image


def pull_known_good(engine: Engine, evidence: KnownGood, notify: Notify) -> Image:
    """Return the image of a known-good tag: the one in the engine, or else pulled by digest.

    Raises:
        UserError: when it is in no registry and not here, cannot be pulled, or is of another cell than the evidence.
    """
    # Engines with containerd's image store have other ids for images.
    image = find(engine, evidence.image) or find(engine, evidence.reference)
    if image:
        return image
    if evidence.digest is None or evidence.repository is None:
        raise UserError(f"{evidence.tag}: its image was removed, and is in no registry; promote it again")
    doing = f"pulling {evidence.reference}"
    _bring(engine, evidence.repository, evidence.digest, doing, notify)
    image = find(engine, evidence.reference)
    if image is None or image.labels.get(f"{PREFIX}.cell") != evidence.cell:
        raise UserError(f"{doing}: the pulled image is not of {evidence.cell}; do not trust this registry")
    return image


def _bring(engine: Engine, repository: str, reference: str, doing: str, notify: Notify) -> str:
    """Have the engine hold an image of a repository, by tag or digest; return its digest.

    What was fetched before is not fetched again.

    Raises:
        UserError: when there is no such image, or the registry refuses or does not answer any more.
    """
    notify(doing)
    relay = Relay(repository, doing, notify)
    try:
        manifest = relay.manifest(reference)
    except UserError as error:
        raise type(error)(f"{doing}: {error}") from None
    if manifest is None:
        raise UserError(f"{doing}: there is no such image; `matrix push` brings one there")
    with locked(LAYERS / ".lock", notify):
        there = find(engine, f"{repository}@{manifest.digest}") is not None
        if not there:
            _bring_layers(engine, relay, manifest.digest, doing)
        # Having the layers, the engine learns their image's name; one that no relay reaches pulls them here.
        pull = partial(_pull, engine, repository, manifest.digest, doing, notify)
        if there or relay.asked:
            _in_time(pull, doing)
        else:
            pull()
        if reference != manifest.digest:
            # A tag may have been moved since.
            with engine_errors(doing):
                engine.client.api.tag(f"{repository}@{manifest.digest}", repository, reference)
        _forget_relays(engine, f"{repository}@{manifest.digest}")
        relay.forget()
    return manifest.digest


def _bring_layers(engine: Engine, relay: Relay, digest: str, doing: str) -> None:
    with relay.serving() as here:
        try:
            with transfer_errors(doing):
                # Nobody's credentials are for the relay.
                events = engine.patient.api.pull(here, digest, stream=True, decode=True, auth_config={})
                for event in engine.roomy(events, doing):
                    if event.get("status") == "Already exists":
                        relay.in_the_engine(str(event.get("id")))
                    follow_transfer([event], doing, lambda _: None)
        except UserError:
            if relay.problem:
                raise type(relay.problem)(f"{doing}: {relay.problem}") from None
            # An engine that has a network of its own, as in a virtual machine, does not get here.
            if relay.asked:
                raise


def _in_time(pull: Callable[[], None], doing: str) -> None:
    """Have the engine ask for no more than a name: a registry may keep it waiting, which says nothing then.

    Raises:
        NoAnswerError: when that takes too long.
        UserError: as the pull does.
    """
    try:
        Look(pull).result(NAME_SECONDS)
    except TimeoutError:
        raise NoAnswerError(
            f"{doing}: the registry keeps the engine waiting for more than {NAME_SECONDS:.0f} s"
        ) from None


def _pull(engine: Engine, repository: str, reference: str, doing: str, notify: Notify) -> None:
    def attempt() -> None:
        with transfer_errors(doing):
            events = engine.patient.api.pull(repository, reference, stream=True, decode=True)
            follow_transfer(engine.roomy(events, doing), doing, notify)

    patiently(attempt, lambda: 1, notify)


def _forget_relays(engine: Engine, reference: str) -> None:
    """Remove the names that an image had while it was pulled, this time or one that was cut short."""
    image = find(engine, reference)
    for name in image.digests if image else ():
        if RELAYED.fullmatch(name):
            with engine_errors(f"removing the name {name}"):
                engine.client.api.remove_image(name)


def _noting_layers(events: Iterable[Mapping[str, Any]], sent: set[str]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        # Those of single layers; of what is under way the engine gives progress.
        if "id" in event and str(event.get("status")).startswith(LAYER_IS_THERE):
            sent.add(str(event["id"]))
        yield event
