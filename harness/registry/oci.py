"""A repository of an OCI registry: manifests, small blobs, tags, and the referrers of an image.

It follows the OCI distribution specification 1.1. If a registry lacks the referrers API, the index of referrers is
stored under the tag `sha256-<digest>`, which is the specification's fallback.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import docker.auth
from requests import Response

from harness.base.errors import UserError
from harness.base.files.json_bounds import json_object
from harness.host.engine_errors import engine_errors
from harness.registry.connection import ACCEPTED, CREATED, NOT_FOUND, OK, Connection

IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = ", ".join((IMAGE_MANIFEST, DOCKER_MANIFEST, IMAGE_INDEX, DOCKER_LIST))
DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
EMPTY_TYPE, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
# Attempts to replace the index of referrers, because several clients may add a referrer at the same time.
ATTEMPTS = 5
# Most referrers of an image. Each is a request of its own, and an image is only promoted a few times.
MOST_REFERRERS = 400
# Largest configuration in bytes; real ones have some kilobytes. An engine whose image has a megabyte of labels cannot
# be asked about it any more.
LARGEST_CONFIGURATION = 256 << 10

Descriptor = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A manifest, byte by byte as the registry stores it."""

    content: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """Return the digest of the manifest."""
        return digest_of(self.content)

    @property
    def descriptor(self) -> Descriptor:
        """Return the descriptor by which other manifests refer to this one."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.content)}

    @property
    def parsed(self) -> Mapping[str, Any]:
        """Return the parsed content; empty if it is not JSON object."""
        return json_object(self.content)


def blobs_of(manifest: Manifest) -> tuple[Descriptor, ...]:
    """Return the descriptors of the blobs of a manifest: its configuration and its layers."""
    return (descriptor_in(manifest, "config"), *objects_in(manifest.parsed, "layers"))


def descriptor_in(manifest: Manifest, name: str) -> Descriptor:
    """Return a manifest's descriptor with a name; empty if there is none."""
    return object_in(manifest.parsed, name)


def object_in(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object with a name in an untrusted document; empty if there is none."""
    value = told.get(name)
    return value if isinstance(value, dict) else {}


def objects_in(told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in the list with a name in an untrusted document; empty if there is none."""
    values = told.get(name)
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


class Repository:
    """A repository such as `ghcr.io/me/vpoc`. Every method raises UserError if the registry refuses or is down."""

    def __init__(self, name: str) -> None:
        with engine_errors(f"registry {name}"):
            host, self._path = docker.auth.resolve_repository_name(name)
        self.name = name
        connection = Connection(host)
        self._ask, self._reading = connection.ask, connection.reading

    def manifest(self, reference: str) -> Manifest | None:
        """Return the manifest of a tag or digest; None if there is none."""
        response = self._ask(
            "GET", f"{self._path}/manifests/{reference}", headers={"Accept": MANIFESTS}, also=(NOT_FOUND,)
        )
        if response.status_code == NOT_FOUND:
            return None
        found = Manifest(response.content, response.headers.get("Content-Type", IMAGE_MANIFEST).partition(";")[0])
        if reference.startswith("sha256:") and found.digest != reference:
            raise UserError(f"{self.name}@{reference}: the registry gave {found.digest} instead; do not trust it")
        return found

    def put_manifest(self, reference: str, manifest: Manifest) -> Response:
        """Store a manifest under a tag, which then points to it, or under its digest."""
        headers = {"Content-Type": manifest.media_type}
        return self._ask("PUT", f"{self._path}/manifests/{reference}", headers, manifest.content, (CREATED,))

    def artifact(self, kind: str, content: bytes, annotations: Mapping[str, str], subject: Manifest | None) -> Manifest:
        """Store content as a blob; return a manifest for it, which is not stored yet."""
        self._put_blob(EMPTY)
        self._put_blob(content)
        document = {
            "schemaVersion": 2,
            "mediaType": IMAGE_MANIFEST,
            "artifactType": kind,
            "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
            "layers": [{"mediaType": kind, "digest": digest_of(content), "size": len(content)}],
            **({"subject": subject.descriptor} if subject else {}),
            "annotations": dict(annotations),
        }
        return Manifest(json.dumps(document, sort_keys=True).encode(), IMAGE_MANIFEST)

    def tags(self) -> list[str]:
        """Return the tags; an empty list if the repository does not exist yet."""
        response = self._ask("GET", f"{self._path}/tags/list", also=(NOT_FOUND,))
        listed = json_object(response.content).get("tags") if response.status_code == OK else None
        return [str(tag) for tag in listed] if isinstance(listed, list) else []

    def unpacked_layers(self, image: Manifest) -> set[str]:
        """Return the digests of an image's unpacked layers, from its configuration."""
        config = descriptor_in(image, "config")
        digest = str(config.get("digest"))
        if "image" not in str(config.get("mediaType")) or not DIGEST.fullmatch(digest):
            return set()
        content = self._ask("GET", f"{self._path}/blobs/{digest}").content
        layers = object_in(json_object(content), "rootfs").get("diff_ids")
        return set(map(str, layers)) if isinstance(layers, list) else set()

    def without_image(self, kind: str) -> Manifest:
        """Store an artifact that is no image; return an index of it for an unknown platform, which is not stored yet.

        An engine with containerd's image store pulls any artifact as if it were an image. From an index each engine
        takes only what is for its own platform, and refuses the index if there is nothing.
        """
        artifact = self.artifact(kind, EMPTY, {}, None)
        self.put_manifest(artifact.digest, artifact)
        entry = {**artifact.descriptor, "platform": {"architecture": "unknown", "os": "unknown"}}
        document = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "artifactType": kind, "manifests": [entry]}
        return Manifest(json.dumps(document, sort_keys=True).encode(), IMAGE_INDEX)

    def content(self, artifact: Manifest) -> bytes:
        """Return the content of an artifact made by `artifact`."""
        layers = objects_in(artifact.parsed, "layers")
        digest = str(layers[0].get("digest")) if layers else ""
        # A digest becomes a part of the request and of messages, and anybody may have written this one.
        if not DIGEST.fullmatch(digest):
            raise UserError(f"{self.name}@{artifact.digest}: has no content; it was made by another tool")
        content = self._ask("GET", f"{self._path}/blobs/{digest}").content
        if digest_of(content) != digest:
            raise UserError(f"{self.name}: blob {digest} is damaged or was replaced; do not trust this registry")
        return content

    def reading(self, digest: str, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Read a blob of any length, as in `Connection.reading`; the caller has to compare it with its digest."""
        return self._reading(f"{self._path}/blobs/{digest}", offset)

    def attach(self, artifact: Manifest, subject: Manifest) -> None:
        """Store an artifact as a referrer of its subject."""
        response = self.put_manifest(artifact.digest, artifact)
        if response.headers.get("OCI-Subject"):
            return
        kind = {key: artifact.parsed[key] for key in ("artifactType", "annotations")}
        entry = {**artifact.descriptor, **kind}
        tag = subject.digest.replace(":", "-")
        for _ in range(ATTEMPTS):
            listed = self._listed(self.manifest(tag))
            if any(other["digest"] == artifact.digest for other in listed):
                return
            index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [*listed, entry]}
            self.put_manifest(tag, Manifest(json.dumps(index).encode(), IMAGE_INDEX))
        raise UserError(f"{self.name}:{tag}: somebody else is writing it at the same time; run the command again")

    def referrers(self, digest: str, kind: str) -> Iterator[Manifest]:
        """Return the artifacts of a kind that refer to an image, in the order of the registry, each when asked for."""
        accepted = {"Accept": IMAGE_INDEX}
        response = self._ask("GET", f"{self._path}/referrers/{digest}", headers=accepted, also=(NOT_FOUND,))
        known = response.status_code == OK and response.headers.get("Content-Type", "").startswith(IMAGE_INDEX)
        index = Manifest(response.content, IMAGE_INDEX) if known else self.manifest(digest.replace(":", "-"))
        listed = [str(entry["digest"]) for entry in self._listed(index) if entry.get("artifactType") == kind]
        if len(listed) > MOST_REFERRERS:
            raise UserError(f"{self.name}@{digest}: {len(listed)} artifacts refer to it; do not trust this registry")
        return filter(None, map(self.manifest, filter(DIGEST.fullmatch, listed)))

    @staticmethod
    def _listed(index: Manifest | None) -> list[Descriptor]:
        return [entry for entry in objects_in(index.parsed, "manifests") if "digest" in entry] if index else []

    def _put_blob(self, content: bytes) -> None:
        digest = digest_of(content)
        if self._ask("HEAD", f"{self._path}/blobs/{digest}", also=(NOT_FOUND,)).status_code == OK:
            return
        begun = self._ask("POST", f"{self._path}/blobs/uploads/", also=(ACCEPTED,))
        place = begun.headers.get("Location", "")
        if not place:
            raise UserError(f"{self.name}: the registry accepts a blob without saying where it is; do not trust it")
        url = f"{place}{'&' if '?' in place else '?'}{urlencode({'digest': digest})}"
        headers = {"Content-Type": "application/octet-stream"}
        self._ask("PUT", url, headers=headers, data=content, also=(CREATED,))


def digest_of(content: bytes) -> str:
    """Return the digest of some content in the form of registries."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
