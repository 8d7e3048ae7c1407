"""Known-good tags on this host: tags of the Docker engine, and the history in the results folder."""

from contextlib import suppress

from docker.errors import ImageNotFound

from harness.environments.docker.images import CELLS, find
from harness.evidence.records import Results
from harness.host.engine import Engine
from harness.host.engine_errors import engine_errors
from harness.registry.tags.promotions import PROMOTIONS, KnownGood, TagMove, append_move, read_moves


class LocalTags:
    """The tags in this host's engine; without an engine only the history."""

    def __init__(self, engine: Engine | None, results: Results) -> None:
        self._engine = engine
        self._results = results

    @property
    def name(self) -> str:
        """Return the file of the history."""
        return str(self._results.folder / PROMOTIONS)

    def moves(self) -> list[TagMove]:
        """Return every promotion and demotion, oldest first."""
        return read_moves(self._results)

    def target(self, evidence: KnownGood) -> str:
        """Return the id of the image."""
        return evidence.image

    def points_to(self, tag: str) -> str | None:
        """Return the id of the image with the tag; None if there is none."""
        image = find(self._engine, f"{CELLS}:{tag}") if self._engine else None
        return image.id if image else None

    def write(self, move: TagMove) -> None:
        """Add a move to the history."""
        append_move(self._results, move)

    def point(self, tag: str, evidence: KnownGood | None) -> None:
        """Tag the image of the evidence, or remove the tag; do nothing without an engine or such an image."""
        if self._engine is None:
            return
        with engine_errors(f"tagging {CELLS}:{tag}"), suppress(ImageNotFound):
            if evidence:
                self._engine.client.api.tag(evidence.image, CELLS, tag)
            else:
                self._engine.client.api.remove_image(f"{CELLS}:{tag}", noprune=True)
