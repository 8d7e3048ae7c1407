"""Tests of what `matrix verify` prints about a comparison."""

from typing import Any

import pytest

from harness.cli.verify import _manifests, _sentence
from harness.environments.docker.verify_image import Comparison

ONE, OTHER = "sha256:1", "sha256:2"


@pytest.mark.parametrize(
    ("rebuilt", "same", "differences", "told"),
    [
        (ONE, True, (), "; the manifest is the same, sha256:1"),
        (OTHER, False, (), "; the manifest is another, sha256:1 and sha256:2: packed or labelled in another way"),
        # The engine has no manifests, or the files differ and are reported instead.
        (OTHER, None, (), ""),
        (OTHER, False, ("/etc/x: content",), ""),
    ],
)
def test_manifests_are_compared_where_the_engine_has_them(
    rebuilt: str, same: bool | None, differences: tuple[str, ...], told: str
) -> None:
    compared: dict[str, Any] = Comparison(ONE, rebuilt, None, 4, 4, differences, same).plain
    assert _manifests(compared) == told


@pytest.mark.parametrize("differences", [(), ("/etc/x: content",)])
@pytest.mark.parametrize("layers", [4, 3])
def test_the_base_that_is_not_built_again_is_named(differences: tuple[str, ...], layers: int) -> None:
    compared = {**Comparison(ONE, OTHER, "abc", layers, 4, differences).plain, "base": "evil\n:1"}
    assert "of revision abc on the base that it names, 'evil" in _sentence(compared)
    assert "\n" not in _sentence(compared)
