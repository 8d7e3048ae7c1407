import os
import subprocess
import sys
import time

import pytest

from vpoc.errors import UserError
from vpoc.ranks import folder as folders
from vpoc.ranks.folder import PREFIX, private_folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path)
    return tmp_path


def make_old(path):
    os.utime(path, (time.time() - 3600,) * 2)


KILLED = """
import os, signal, sys
from pathlib import Path
from vpoc.ranks import folder
folder.SHARED_MEMORY = Path(sys.argv[1])
with folder.private_folder() as made:
    (made / "rendezvous").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_launcher_left_is_removed_by_the_next(place):
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
    [left] = place.iterdir()
    assert (left / "rendezvous").exists()
    make_old(left)
    with private_folder() as mine:
        assert list(place.iterdir()) == [mine]
    assert not list(place.iterdir())


def test_a_folder_in_use_or_just_made_is_left_alone(place):
    young = place / f"{PREFIX}young"
    young.mkdir()
    with private_folder() as first:
        make_old(first)
        with private_folder() as second:
            assert {first, second, young} == set(place.glob(f"{PREFIX}*"))


def test_what_another_user_put_there_is_left_alone(place):
    os.mkfifo(pipe := place / f"{PREFIX}pipe")
    foreign = place / f"{PREFIX}foreign"
    foreign.mkdir()
    if os.geteuid() == 0:
        os.chown(foreign, 65533, 65533)
        make_old(foreign)
    make_old(pipe)
    with private_folder() as mine:
        assert {mine, pipe, foreign} == set(place.iterdir())


def test_without_shared_memory_the_folder_for_temporary_files_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with private_folder() as mine:
        assert mine.parent == tmp_path


def test_no_place_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nor this"))
    with pytest.raises(UserError, match="no such file or folder"), private_folder():
        pass
