"""Images in a folder, and the index of these images."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.base.files.json_bounds import json_object
from harness.environments.docker.images import name_by_labels
from harness.registry.oci import IMAGE_INDEX, Descriptor, Manifest, blobs_of, digest_of, object_in

NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class SavedImage:
    """An image in a folder: its name, manifest and configuration, and the artifacts that refer to it."""

    name: str
    manifest: Manifest
    config: bytes
    artifacts: tuple[Manifest, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """Return the ids that engines give the image: the digest of its configuration or, in newer ones, manifest."""
        return frozenset((digest_of(self.config), self.manifest.digest))

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Return the parsed configuration."""
        return json_object(self.config)

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the image."""
        return dict(object_in(self.configuration, "config").get("Labels") or {})

    @property
    def unpacked(self) -> tuple[str, ...]:
        """Return the digests of the unpacked layers."""
        return tuple(map(str, object_in(self.configuration, "rootfs").get("diff_ids") or ()))

    @property
    def own_name(self) -> str:
        """Return the cell's name according to the image's labels; empty if they name no cell."""
        return name_by_labels(self.labels)

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Return the descriptors of the layers."""
        return blobs_of(self.manifest)[1:]


def index_of(images: Iterable[SavedImage]) -> bytes:
    """Return the index of a folder that has these images."""
    entries: list[Descriptor] = []
    for image in sorted(images, key=lambda image: image.name):
        entries.append({**image.manifest.descriptor, "annotations": {NAME: image.name}})
        artifacts = sorted(image.artifacts, key=lambda one: one.digest)
        entries += ({**one.descriptor, "artifactType": one.parsed.get("artifactType")} for one in artifacts)
    document = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": entries}
    return json.dumps(document, indent=1, sort_keys=True).encode()
