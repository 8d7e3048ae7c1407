"""Pushes images to a registry and pulls them from one, with the docker command's credentials."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from harness.base.errors import NoAnswerError, UserError
from harness.base.files.locks import locked
from harness.base.time_limits import BackgroundCall
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
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, engine_errors, follow_transfer, transfer_errors
from harness.matrix.cells import Cell
from harness.registry.kept_layers import LAYERS
from harness.registry.oci import objects_in
from harness.registry.relay import RELAYED, Relay
from harness.registry.retries import with_retries
from harness.registry.tags.promotions import KnownGood

# What engines report of a layer once a registry has it.
LAYER_IS_THERE = ("Pushed", "Layer already exists", "Already exists", "Mounted from")
# Seconds in which an engine has to learn the name of an image that it has, including all pauses between attempts.
NAME_SECONDS = 180.0
# Engines refuse some hundred and fifty.
MOST_LAYERS = 1000


def remote_name(registry: str, cell: Cell) -> str:
    """Return the name of a cell's image in a registry such as `ghcr.io/me`."""
    return f"{repository_in(registry)}:{tag_name(cell)}"


def built_image(engine: Engine, cell: Cell) -> Image:
    """Return the image of a cell as this checkout would build it.

    Raises:
        UserError: when the image is not built.
    """
    image = current_image(engine, cell)
    if image is None:
        raise UserError(f"there is no image of {cell.id} for its current inputs; `matrix build {cell.id}` builds it")
    return image


def push_image(engine: Engine, image: str, name: str, notify: Notify) -> str:
    """Push an image under a name such as `ghcr.io/me/vpoc:cpu-plain`; return the digest of its manifest.

    The engine notes which layers the registry has, so after an interrupted push only the missing layers are sent.

    Raises:
        UserError: when the registry refuses the image, or stops answering.
    """
    repository, tag = name.rsplit(":", 1)
    doing = f"pushing {name}"
    notify(doing)
    sent: set[str] = set()

    def attempt() -> str | None:
        with transfer_errors(doing):
            events = engine.client_without_timeout.api.push(repository, tag, stream=True, decode=True)
            return follow_transfer(_noting_layers(events, sent), doing, notify)

    with engine_errors(doing):
        engine.client.api.tag(image, repository, tag)
    digest = with_retries(attempt, lambda: len(sent), notify)
    if digest is None:
        raise UserError(f"{doing}: the engine gave no digest; `docker pull {name}` shows it")
    return digest


def pull(engine: Engine, cell: Cell, registry: str, digest: str | None, notify: Notify) -> Image:
    """Pull the image of a cell, by digest if one is given, and give the image its local tag.

    Raises:
        UserError: when there is no such image, or it is of another cell.
    """
    name = remote_name(registry, cell)
    repository, tag = name.rsplit(":", 1)
    reference = f"{repository}@{digest}" if digest else name
    doing = f"pulling {reference}"
    # Find the image by digest, because anybody may have moved its tag meanwhile.
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
    """Return the image of a known-good tag: from the engine, or else pulled by digest.

    Raises:
        UserError: when the image is neither here nor in a registry, cannot be pulled, or is of another cell than the
            evidence.
    """
    # Search by reference, too, because engines with containerd's image store have other ids for images.
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
    """Get an image of a repository into the engine, by tag or digest; return its digest.

    Layers that were fetched before are not fetched again.

    Raises:
        UserError: when there is no such image, or the registry refuses or stops answering.
    """
    notify(doing)
    relay = Relay(repository, doing, notify)
    try:
        manifest = relay.manifest(reference)
    except UserError as error:
        raise type(error)(f"{doing}: {error}") from None
    if manifest is None:
        raise UserError(f"{doing}: there is no such image; `matrix push` brings one there")
    if (layers := len(objects_in(manifest.parsed, "layers"))) > MOST_LAYERS:
        # An engine does not answer while it reads a hundred thousand.
        raise UserError(f"{doing}: it has {layers:,} layers, more than any engine takes; do not trust this registry")
    with locked(LAYERS / ".lock", notify):
        there = find(engine, f"{repository}@{manifest.digest}") is not None
        if not there:
            _bring_layers(engine, relay, manifest.digest, doing)
        # The engine has the layers, and learns the image's name. If no relay reaches the engine, it pulls the layers
        # here.
        pull = partial(_pull, engine, repository, manifest.digest, doing, notify)
        if there or relay.asked:
            _in_time(pull, doing)
        else:
            pull()
        if reference != manifest.digest:
            # Tag the image here, because the tag in the registry may have been moved since.
            with engine_errors(doing):
                engine.client.api.tag(f"{repository}@{manifest.digest}", repository, reference)
        _forget_relays(engine, f"{repository}@{manifest.digest}")
        relay.forget()
    return manifest.digest


def _bring_layers(engine: Engine, relay: Relay, digest: str, doing: str) -> None:
    with relay.serving() as here:
        try:
            with transfer_errors(doing):
                # Send no credentials to the relay.
                events = engine.client_without_timeout.api.pull(here, digest, stream=True, decode=True, auth_config={})
                for event in engine.while_disk_has_room(events, doing):
                    if event.get("status") == "Already exists":
                        relay.in_the_engine(str(event.get("id")))
                    follow_transfer([event], doing, lambda _: None)
        except UserError:
            if relay.problem:
                raise type(relay.problem)(f"{doing}: {relay.problem}") from None
            # Ignore an engine that cannot reach the relay because it has a network of its own, as in a virtual machine.
            if relay.asked:
                raise


def _in_time(pull: Callable[[], None], doing: str) -> None:
    """Let the engine pull an image whose layers it has, within a limit, because a registry may keep the engine waiting.

    Raises:
        NoAnswerError: when the pull takes too long.
        UserError: when the pull fails.
    """
    try:
        BackgroundCall(pull).result(NAME_SECONDS)
    except TimeoutError:
        raise NoAnswerError(
            f"{doing}: the registry keeps the engine waiting for more than {NAME_SECONDS:.0f} s"
        ) from None


def _pull(engine: Engine, repository: str, reference: str, doing: str, notify: Notify) -> None:
    def attempt() -> None:
        with transfer_errors(doing):
            events = engine.client_without_timeout.api.pull(repository, reference, stream=True, decode=True)
            follow_transfer(engine.while_disk_has_room(events, doing), doing, notify)

    with_retries(attempt, lambda: 1, notify)


def _forget_relays(engine: Engine, reference: str) -> None:
    """Remove the names that an image had while it was pulled through a relay, in this pull or an interrupted one."""
    image = find(engine, reference)
    for name in image.digests if image else ():
        if RELAYED.fullmatch(name):
            with engine_errors(f"removing the name {name}"):
                engine.client.api.remove_image(name)


def _noting_layers(events: Iterable[Mapping[str, Any]], sent: set[str]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        # Events with an id are about single layers; for layers under way the engine reports progress instead.
        if "id" in event and str(event.get("status")).startswith(LAYER_IS_THERE):
            sent.add(str(event["id"]))
        yield event
