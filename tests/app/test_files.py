import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from vpoc.errors import UserError
from vpoc.files import (
    read_bytes,
    require_output,
    require_temporary_folder,
    require_writable,
    sha256,
    sha256_file,
    write_atomic,
    write_json,
)

ROOT = os.geteuid() == 0


def test_what_is_written_is_there(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    write_atomic(path, b"content")
    assert path.read_bytes() == b"content"
    assert names(path.parent) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_link_is_written_through(tmp_path):
    real, link = tmp_path / "real" / "file", tmp_path / "link"
    link.symlink_to(real)
    for content in (b"first", b"second"):
        write_atomic(link, content)
        assert link.is_symlink()
        assert real.read_bytes() == content


def test_a_link_of_another_user_is_not_written_through(tmp_path, monkeypatch):
    (tmp_path / "own").write_bytes(b"own")
    (tmp_path / "link").symlink_to("own")
    if ROOT:
        os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: -1)
    with pytest.raises(UserError, match="is a link of another user's"):
        write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "own").read_bytes() == b"own"


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for write in (require_output, lambda path: write_atomic(path, b"x")):
        with pytest.raises(UserError, match="not a file but a folder or a device"):
            write(tmp_path / "pipe")


def test_an_input_is_no_output(tmp_path):
    data, link = tmp_path / "data", tmp_path / "link"
    data.touch()
    link.hardlink_to(data)
    require_output(tmp_path / "new", data, None)
    for same in (data, link, tmp_path / "." / "data"):
        with pytest.raises(UserError, match="the same file as the input"):
            require_output(same, None, data)


def test_a_folder_to_write_in(tmp_path):
    require_writable(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="a file"):
        require_writable(tmp_path / "file")


def test_hashes_agree(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    assert sha256_file(tmp_path / "file") == sha256(b"x" * 3_000_000)


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "file", {"loss": float("nan")})
    assert names(tmp_path) == []


def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def broken(_descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(UserError, match="Input/output error"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        write_atomic(tmp_path / "file" / "model", b"x")


@pytest.fixture
def small_disk(tmp_path):
    """Mount and yield a file system of 64 KiB."""
    if not ROOT or shutil.which("mount") is None:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_one_line_and_keeps_the_old_model(small_disk):
    path = small_disk / "model.pt"
    write_atomic(path, b"old")
    with pytest.raises(UserError, match="the disk is full"):
        write_atomic(path, b"x" * 200_000)
    assert path.read_bytes() == b"old"
    assert names(small_disk) == ["model.pt"]


def test_an_unwritable_folder_is_one_line_and_keeps_the_old_model(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    code = (
        "import sys; from pathlib import Path; from vpoc.files import write_atomic; from vpoc.errors import UserError\n"
        "try: write_atomic(Path(sys.argv[1]), b'new')\n"
        "except UserError as error: sys.exit(str(error))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    if ROOT:
        if shutil.which("setpriv") is None:
            pytest.skip("root writes anywhere, and there is no setpriv to take that away")
        capabilities = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", *command]
    tmp_path.chmod(0o555)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        tmp_path.chmod(0o755)
    assert "permission denied" in done.stderr
    assert done.stderr.count("\n") == 1
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model.pt"]


def test_a_pipe_and_a_file_beyond_all_bounds_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a pipe or a device"):
        read_bytes(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(UserError, match="has 1,099,511,627,776 bytes"):
        read_bytes(tmp_path / "sparse")


def test_without_a_folder_for_temporary_files_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    require_temporary_folder()
    assert tempfile.tempdir is None, "chosen again later"
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    with pytest.raises(UserError, match="; set TMPDIR to a folder that can be written"):
        require_temporary_folder()
