"""The base image of a stack: found on the engine, or pulled from its registry."""

import re

from docker.auth import resolve_repository_name
from docker.utils import parse_repository_tag

from harness.base.errors import NoAnswerError, UserError
from harness.base.silent_hosts import note_silent, said_of_silent
from harness.environments.docker.images import Image, base_reference, find
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, follow_transfer, transfer_errors
from harness.matrix.stacks import Stack

OWN_BASE = (
    "run cells with --executor process, or give --base IMAGE with one that is here "
    "(`make base` makes one from Debian's packages)"
)
# What the engine says of a registry that takes no connection. A connection that breaks off later may work if retried.
NO_CONNECTION = re.compile(r"\bdial\b|no such host|handshake timeout|awaiting headers", re.IGNORECASE)
NO_NETWORK = "no network, or a firewall or proxy is in the way"


class NoBaseImageError(UserError):
    """The base image of a stack is not here and cannot be pulled. `why`: the reason, without details and a remedy."""

    code = "no-base-image"

    def __init__(self, why: str, details: str = "") -> None:
        super().__init__(f"{why}{details}; {OWN_BASE}")
        self.why = why


class NoAnswerForBaseError(NoBaseImageError, NoAnswerError):
    """The registry of a base image does not answer, or breaks off."""


def digest_of_base(base: Image, stack: Stack) -> str | None:
    """Return the digest under which the base came from its registry; None for a base that was made here."""
    wanted = _place_of(parse_repository_tag(stack.base)[0])
    named = (name.partition("@") for name in base.digests)
    return next((digest for name, _, digest in named if _place_of(name) == wanted), None)


def _place_of(name: str) -> tuple[str, str]:
    """Return registry and repository: an engine says `python` for `docker.io/library/python`."""
    registry, repository = resolve_repository_name(name)
    return registry, repository.removeprefix("library/")


def ensure_base(engine: Engine, stack: Stack, notify: Notify = lambda _: None) -> Image:
    """Return the base image of a stack, pulling it if the engine does not have it.

    Raises:
        NoBaseImageError: when the image cannot be pulled.
    """
    reference = base_reference(stack)
    if image := find(engine, reference):
        return image
    name, version = parse_repository_tag(reference)
    registry, _ = resolve_repository_name(name)
    cannot = f"base image {reference} cannot be pulled"
    said = said_of_silent(registry)
    try:
        if said is None:
            notify(f"pulling {reference}")
            with transfer_errors(cannot):
                events = engine.client_without_timeout.api.pull(name, version or "latest", stream=True, decode=True)
                follow_transfer(events, cannot, notify)
    except NoAnswerError as error:
        said = str(error).removeprefix(f"{cannot}: ")
        if not NO_CONNECTION.search(said):
            raise NoAnswerForBaseError(str(error)) from None
        note_silent(registry, said)
    except UserError as error:
        raise NoBaseImageError(str(error)) from None
    if said:
        raise NoAnswerForBaseError(
            f"{cannot}: {registry} does not answer the Docker engine", f" ({said}): {NO_NETWORK}"
        )
    if image := find(engine, reference):
        return image
    raise UserError(f"image {reference} was pulled and is gone; somebody removed it")
