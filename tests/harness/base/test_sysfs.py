from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.sysfs import LARGEST, read_text


@pytest.mark.parametrize(("make", "told"), [(lambda file: file.symlink_to("/dev/zero"), LARGEST), (Path.mkdir, None)])
def test_nothing_of_a_simulated_host_is_read_without_end(
    make: Callable[[Path], None], told: int | None, tmp_path: Path
) -> None:
    make(tmp_path / "vendor")
    text = read_text(tmp_path / "vendor")
    assert (None if text is None else len(text)) == told
