import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.environments.docker.images import PREFIX
from harness.registry.oci import IMAGE_MANIFEST, Manifest
from harness.registry.saved.load import _check_name, _check_statements
from harness.registry.saved.saved_image import SavedImage


@pytest.mark.parametrize("name", ["known-good", "known-good-cpu"])
def test_no_folder_moves_a_known_good_tag(name: str) -> None:
    config = json.dumps({"config": {"Labels": {f"{PREFIX}.cell": name}}}).encode()
    with pytest.raises(UserError, match=r"as only `matrix promote` names one"):
        _check_name(Path("images"), SavedImage(name, Manifest(b"{}", IMAGE_MANIFEST), config))


def test_a_refused_name_of_an_image_stays_within_one_line() -> None:
    config = json.dumps({"config": {"Labels": {f"{PREFIX}.cell": "b\nmatrix: c"}}}).encode()
    with pytest.raises(UserError) as told:
        _check_name(Path("images"), SavedImage("a\nmatrix: all is well", Manifest(b"{}", IMAGE_MANIFEST), config))
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(("count", "size", "refused"), [(1000, 10, False), (1001, 10, True), (2, 9 << 20, True)])
def test_more_or_larger_statements_than_anybody_makes_are_refused(count: int, size: int, refused: bool) -> None:
    artifact = Manifest(json.dumps({"layers": [{"size": size}], "config": {"size": 2}}).encode(), IMAGE_MANIFEST)
    image = SavedImage("cpu-plain", Manifest(b"{}", IMAGE_MANIFEST), b"{}", (artifact,) * count)
    with pytest.raises(UserError, match="statements of") if refused else nullcontext():
        _check_statements(Path("images"), image)
