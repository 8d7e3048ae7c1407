"""Known-good tags in a registry, and their history with the evidence for each."""

from harness.base.errors import UserError
from harness.environments.docker.images import repository_in
from harness.registry.oci import Manifest, Repository
from harness.registry.tags.promotions import KnownGood, TagMove, from_lines, to_line

# Media types of artifacts.
HISTORY = "application/vnd.vpoc.promotions.v1+jsonl"
# A demoted tag points to such an artifact, which an engine cannot pull, because few registries can delete a tag.
DEMOTED = "application/vnd.vpoc.demoted.v1+json"
HISTORY_TAG = "known-good.history"


class RegistryTags:
    """The known-good tags of a registry such as `ghcr.io/me`. Every method raises UserError when the registry fails."""

    def __init__(self, registry: str) -> None:
        self._repository = Repository(repository_in(registry))

    @property
    def name(self) -> str:
        """Return the name of the repository."""
        return self._repository.name

    @property
    def _history_name(self) -> str:
        return f"{self.name}:{HISTORY_TAG}"

    def moves(self) -> list[TagMove]:
        """Return every promotion and demotion there, oldest first."""
        return from_lines(self._history(), self._history_name)

    def target(self, evidence: KnownGood) -> str:
        """Return the digest of the image; an image that was promoted without a registry has none."""
        return evidence.digest or "no digest"

    def points_to(self, tag: str) -> str | None:
        """Return the digest of the target of a tag; None if it does not exist, or was demoted."""
        found = self._repository.manifest(tag)
        return found.digest if found and found.parsed.get("artifactType") != DEMOTED else None

    def write(self, move: TagMove) -> None:
        """Add a move to the history; for a promotion, require that the image is in the registry."""
        if move.move == "promoted":
            self._image(move.evidence)
        history = self._history() + to_line(move)
        # Never write what cannot be read.
        from_lines(history, self._history_name)
        self._repository.put_manifest(HISTORY_TAG, self._repository.artifact(HISTORY, history, {}, None))

    def point(self, tag: str, evidence: KnownGood | None) -> None:
        """Make a tag point to an image, or to an index without an image, which cannot be pulled."""
        if evidence:
            self._repository.put_manifest(tag, self._image(evidence))
        elif self._repository.manifest(tag):
            self._repository.put_manifest(tag, self._repository.without_image(DEMOTED))

    def check(self, evidence: KnownGood) -> None:
        """Refuse a tag in force that points elsewhere than its evidence says."""
        points_to = self.points_to(evidence.tag)
        if points_to != evidence.digest:
            raise UserError(
                f"{self.name}: somebody moved {evidence.tag} to {points_to or 'nothing'}, without evidence; "
                "promote it again"
            )

    def _history(self) -> bytes:
        history = self._repository.manifest(HISTORY_TAG)
        return self._repository.content(history) if history else b""

    def _image(self, evidence: KnownGood) -> Manifest:
        image = self._repository.manifest(self.target(evidence))
        if image is None:
            raise UserError(f"{self.name}@{evidence.digest}: is not there; push it again with `matrix promote`")
        return image
