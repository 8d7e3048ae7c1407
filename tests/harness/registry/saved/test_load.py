import json
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.environments.docker.images import PREFIX
from harness.registry.oci import IMAGE_MANIFEST, Manifest
from harness.registry.saved.load import _check_name
from harness.registry.saved.saved_image import SavedImage


@pytest.mark.parametrize("name", ["known-good", "known-good-cpu"])
def test_no_folder_moves_a_known_good_tag(name: str) -> None:
    config = json.dumps({"config": {"Labels": {f"{PREFIX}.cell": name}}}).encode()
    with pytest.raises(UserError, match=r"as only `matrix promote` names one"):
        _check_name(Path("images"), SavedImage(name, Manifest(b"{}", IMAGE_MANIFEST), config))
