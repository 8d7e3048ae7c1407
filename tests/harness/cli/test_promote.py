"""Tests of what `matrix promote` prints."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.promote import _promoted
from harness.environments.docker import own_images
from harness.environments.docker.images import Image
from harness.registry.tags.promotions import KnownGood


def test_promote_says_that_an_image_was_not_built_here(
    make_evidence: Callable[..., KnownGood], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images.txt")
    evidence = make_evidence()
    assert _promoted(evidence, "is").endswith("; its image was not built here; `matrix verify cpu-plain` compares")
    own_images.remember(Image(evidence.image, {}, (), 1))
    assert "not built here" not in _promoted(evidence, "is")


def test_a_lower_bound_is_rounded_down(make_evidence: Callable[..., KnownGood]) -> None:
    said = _promoted(make_evidence(low=0.8953, confidence=0.999), "is")
    assert "starts above 89 % at 99.9 % confidence" in said
