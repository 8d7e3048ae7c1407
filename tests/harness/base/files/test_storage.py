"""Tests of durable files: full disks, umasks, long names, links and files of others."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files import storage
from harness.base.files.locks import locked
from harness.base.files.storage import (
    make_folder_durably,
    open_regular,
    read_regular,
    remedy_for,
    write_durably,
    write_json,
)


def test_nan_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "f.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if not shutil.which("mount"):
        pytest.skip("a small tmpfs cannot be mounted here: there is no mount command")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mount = subprocess.run(command, check=False, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(small_disk: Path) -> None:
    file = small_disk / "record.json"
    write_durably(file, b"old")
    with pytest.raises(UserError, match="No space left on device"):
        write_durably(file, b"x" * (1 << 20))
    assert file.read_bytes() == b"old"
    assert [f.name for f in small_disk.iterdir()] == ["record.json"]


def test_a_name_may_be_as_long_as_the_disk_takes(tmp_path: Path) -> None:
    write_durably(tmp_path / ("é" * 127), b"1")
    assert [len(one.name) for one in tmp_path.iterdir()] == [127]


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_durably(tmp_path / "file" / "record.json", b"")


@pytest.fixture(params=["fifo", "link", "folder", "endless"])
def not_a_regular_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path of something that is no regular file; as a link, it leads to a precious file."""
    place, precious = tmp_path / "place", tmp_path / "precious"
    precious.write_text("precious", encoding="utf-8")
    if request.param == "fifo":
        os.mkfifo(place)
    elif request.param == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero" if request.param == "endless" else precious)
    return place


def test_what_is_no_file_is_neither_waited_for_nor_followed(not_a_regular_file: Path) -> None:
    message = r"regular file|symbolic links|directory"
    with pytest.raises(OSError, match=message):
        read_regular(not_a_regular_file)
    with pytest.raises(OSError, match=message), open_regular(not_a_regular_file, adding=True):
        pass
    with pytest.raises(OSError, match=message), locked(not_a_regular_file):
        pass
    assert (not_a_regular_file.parent / "precious").read_text(encoding="utf-8") == "precious"


def test_a_file_that_cannot_be_added_to_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    with pytest.raises(IsADirectoryError) as failed:
        open_regular(tmp_path / "lines", adding=True)
    assert failed.value.filename == str(tmp_path / "lines")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"1234")
    assert read_regular(file, 4) == b"1234"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_regular(file, 3)


def test_a_file_that_says_a_smaller_size_is_read_whole() -> None:
    file = Path("/proc/self/environ")
    assert file.stat().st_size == 0
    assert read_regular(file) == file.read_bytes() != b""


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.parametrize(
    ("mode", "folder", "file"), [(0o2770, 0o2770, 0o660), (0o770, 0o700, 0o600), (0o2750, 0o2700, 0o600)]
)
def test_in_a_folder_that_a_group_shares_no_umask_keeps_others_out(
    tmp_path: Path, mode: int, folder: int, file: int
) -> None:
    tmp_path.chmod(mode)
    written, added = tmp_path / "a" / "b" / "file", tmp_path / "a" / "lines"
    write_durably(written, b"1")
    with open_regular(added, adding=True) as stream:
        stream.write(b"1")
    assert [one.stat().st_mode & 0o7777 for one in (written.parent.parent, written.parent)] == [folder] * 2
    assert [one.stat().st_mode & 0o7777 for one in (written, added)] == [file] * 2


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.ENOTDIR, "a file has the name of this folder"),
        (errno.EROFS, "that you may write to"),
        (errno.EPERM, "undo it with `chattr -ia`"),
        (errno.EISDIR, "choose another folder"),
    ],
)
def test_the_remedy_is_that_of_the_error(number: int, remedy: str) -> None:
    assert remedy in remedy_for(OSError(number, ""))


def test_no_folder_is_made_behind_a_link_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a shared results folder, such a link leads writes into a folder that only this user may change."""
    (tmp_path / "own").mkdir()
    link = tmp_path / "runs"
    link.symlink_to("own")
    write_durably(link / "mine", b"")
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: -1)
    else:
        os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(UserError) as refused:
        write_durably(link / "another.json", b"")
    assert f"is a link of another user's, to {tmp_path / 'own'}; if you want to write there, give" in str(refused.value)
    # The link may also be put there after that was checked, or in place of a folder that was just made.
    monkeypatch.setattr(storage, "make_folder_durably", lambda _: None)
    with pytest.raises(UserError, match="is a link of another user's"):
        write_durably(link / "another.json", b"")
    with pytest.raises(OSError, match="is a link of another user's"):
        open_regular(link / "lines", adding=True)
    monkeypatch.setattr(Path, "mkdir", lambda place, **_: link.rename(place))
    with pytest.raises(OSError, match="is a link of another user's"):
        make_folder_durably(tmp_path / "made")
    assert [place.name for place in (tmp_path / "own").iterdir()] == ["mine"]


@pytest.mark.parametrize(("parent", "expected"), [(0o3770, 0o3770), (0o2770, 0o2770), (0o1777, 0o0755)])
def test_a_folder_that_others_may_write_to_is_sticky_as_its_parent_is(
    tmp_path: Path, parent: int, expected: int
) -> None:
    tmp_path.chmod(parent)
    make_folder_durably(tmp_path / "runs", protect=True)
    assert (tmp_path / "runs").stat().st_mode & 0o3770 == expected & 0o3770
    # Elsewhere users replace the files of others.
    make_folder_durably(tmp_path / "campaigns")
    assert not (tmp_path / "campaigns").stat().st_mode & 0o1000


def test_a_folder_that_another_user_was_faster_to_make_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o3770)
    makes = Path.mkdir

    def make_as_shared(place: Path, **options: bool) -> None:
        makes(place, **options)
        place.chmod(0o2770)

    monkeypatch.setattr(Path, "mkdir", make_as_shared)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    make_folder_durably(tmp_path / "runs", protect=True)
    assert (tmp_path / "runs").stat().st_mode & 0o7777 == 0o2770
