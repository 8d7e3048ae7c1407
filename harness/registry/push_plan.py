"""Finds the layers that a push would send: those of an image that the repository lacks."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.base.errors import UserError
from harness.environments.docker.images import Image
from harness.host.engine import Engine
from harness.host.engine_errors import engine_errors
from harness.registry.oci import Repository

# Most tags that are examined, each by a request of its own; an image shares its layers with one of the newest.
MOST_TAGS = 200


@dataclass(frozen=True)
class PushPlan:
    """How many layers an image has, how many a push would send, and the size of these unpacked, an upper limit."""

    layers: int
    missing: int
    largest: int | None

    @property
    def plain(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {"layers": self.layers, "missing": self.missing, "unpacked_bytes": self.largest}

    @property
    def summary(self) -> str:
        """Return the plan in words."""
        if not self.missing:
            return f"no layer: the repository has all {self.layers}"
        size = "" if self.largest is None else f", {self.largest / 1e6:.0f} MB unpacked and less when compressed"
        return f"{self.missing} of {self.layers} layers{size}"


def plan_push(engine: Engine, image: Image, repository: str) -> PushPlan:
    """Return what a push of an image to a repository would send, without sending anything.

    Raises:
        UserError: when the registry does not answer.
    """
    there = _layers_there(Repository(repository))
    missing = [number for number, layer in enumerate(image.layers) if layer not in there]
    sizes = _sizes(engine, image)
    return PushPlan(len(image.layers), len(missing), sum(sizes[n] for n in missing) if sizes else None)


def _layers_there(repository: Repository) -> set[str]:
    """Return the digests of the unpacked layers of the images that the tags of a repository point to."""
    there: set[str] = set()
    for tag in repository.tags()[-MOST_TAGS:]:
        manifest = repository.manifest(tag)
        # Ignore an artifact, or an image of another tool, which has no layers to share.
        with suppress(UserError):
            there |= repository.unpacked_layers(manifest) if manifest else set()
    return there


def _sizes(engine: Engine, image: Image) -> list[int] | None:
    """Return the size of each layer; None if the engine does not tell them apart."""
    with engine_errors(f"looking at image {image.id}"):
        steps = engine.client.api.history(image.id)
    sizes = [int(step["Size"]) for step in reversed(steps) if int(step["Size"])]
    return sizes if len(sizes) == len(image.layers) else None
