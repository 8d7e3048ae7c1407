"""The inputs of an image and its builder, as an SLSA provenance v1. Pure."""

from typing import Any

from harness import __version__
from harness.environments.docker.images import BASE_DIGEST, BASE_NAME, IDENTITY, PREFIX, Image
from harness.environments.docker.source_state import is_dirty

PROVENANCE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:vpoc:matrix-build:v1"
# The name of the digest that is a git commit.
GIT = "gitCommit"


def provenance_of(image: Image) -> dict[str, Any]:
    """Return the predicate for an image, entirely from its labels, so that `matrix verify` can rebuild the image."""
    labels = image.labels
    named = ("cell", "stack", "preset", "accelerator", "rocm", "torch", "python", "targets")
    told = {name: labels[f"{PREFIX}.{name}"] for name in named if f"{PREFIX}.{name}" in labels}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {**told, "base": labels.get(BASE_NAME), "epochs": labels.get(f"{PREFIX}.epochs")},
            "internalParameters": {"committed": image.revision is not None and not is_dirty(image.revision)},
            "resolvedDependencies": _materials(image),
        },
        "runDetails": {"builder": {"id": f"urn:vpoc:matrix:{__version__}"}, "metadata": {}},
    }


def _materials(image: Image) -> list[dict[str, Any]]:
    materials: list[dict[str, Any]] = []
    if image.revision:
        materials.append({"name": "source", "digest": {GIT: image.revision}})
    digests = {part: image.labels.get(f"{PREFIX}.{part}") for part in IDENTITY}
    digests["base image"] = image.labels.get(BASE_DIGEST)
    told = {name: digest.removeprefix("sha256:") for name, digest in digests.items() if digest}
    return [*materials, *({"name": name, "digest": {"sha256": digest}} for name, digest in told.items())]
