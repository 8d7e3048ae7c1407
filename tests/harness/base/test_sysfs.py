import os
import time
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
    monkeypatch.setattr(sysfs._Wait, "seconds", 0.01 if make is os.mkfifo else 60)
    make(tmp_path / "vendor")
    text = read_text(tmp_path / "vendor")
    assert (None if text is None else len(text)) == told
    if (tmp_path / "vendor").is_fifo():
        # Opening the FIFO ends the thread that still waits for it.
        os.close(os.open(tmp_path / "vendor", os.O_RDWR))


def test_of_many_files_without_end_the_first_alone_is_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs._Wait, "seconds", 0.5)
    fifos = [tmp_path / str(number) for number in range(3)]
    for fifo in fifos:
        os.mkfifo(fifo)
    began = time.monotonic()
    assert [read_text(fifo) for fifo in fifos] == [None] * 3
    assert time.monotonic() - began < 1
    for fifo in fifos:
        os.close(os.open(fifo, os.O_RDWR))
