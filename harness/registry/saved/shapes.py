"""Shapes of an image's documents, for the parts that we rely on, because their author may have written anything."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from harness.registry.oci import DIGEST

_Digest = Annotated[str, Field(pattern=rf"^{DIGEST.pattern}$")]


class Shape(BaseModel):
    """A part of a document that the OCI defines; other parts are allowed."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


class _Described(Shape):
    digest: _Digest
    size: int = Field(ge=0)
    mediaType: str = ""  # noqa: N815 - the OCI's name


class OfManifest(Shape):
    """A manifest, of an image or an artifact."""

    config: _Described
    layers: list[_Described]
    subject: _Described | None = None
    annotations: dict[str, str] | None = None


class _OfRun(Shape):
    Labels: dict[str, str] | None = None


class _OfLayers(Shape):
    diff_ids: list[_Digest]


class OfConfiguration(Shape):
    """The configuration of an image."""

    config: _OfRun | None = None
    rootfs: _OfLayers
