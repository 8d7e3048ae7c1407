"""Tests of what `matrix verify` prints about a comparison."""

from typing import Any

import pytest

from harness.cli.verify import _manifests
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
