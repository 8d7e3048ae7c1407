import os
from pathlib import Path

import pytest

from harness.base.sysfs import LARGEST, read_text
from harness.base.time_limits import Look


@pytest.mark.parametrize(
    ("make", "told"), [(os.mkfifo, 0), (lambda file: file.symlink_to("/dev/zero"), LARGEST), (Path.mkdir, None)]
)
def test_nothing_in_a_simulated_host_is_waited_for_or_read_without_end(
    make: object, told: int | None, tmp_path: Path
) -> None:
    make(tmp_path / "vendor")  # type: ignore[operator]
    text = Look(lambda: read_text(tmp_path / "vendor")).result(10)
    assert (None if text is None else len(text)) == told
