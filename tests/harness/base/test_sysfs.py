import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base import sysfs
from harness.base.sysfs import LARGEST, read_text


@pytest.mark.parametrize(
    ("make", "told"),
    [(lambda file: file.symlink_to("/dev/zero"), LARGEST), (Path.mkdir, None), (os.mkfifo, None)],
)
def test_nothing_of_a_simulated_host_is_read_without_end(
    make: Callable[[Path], None], told: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "WAIT_SECONDS", 0.01 if make is os.mkfifo else 60)
    make(tmp_path / "vendor")
    text = read_text(tmp_path / "vendor")
    assert (None if text is None else len(text)) == told
    if (tmp_path / "vendor").is_fifo():
        # The thread that still waits ends.
        os.close(os.open(tmp_path / "vendor", os.O_RDWR))
