import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from harness.host.processes.py_spy import MOST_BYTES, MOST_BYTES_OF_ALL, MOST_MEMORY_BYTES, dump_from_outside
from harness.host.processes.run_processes import RunProcess


def seen(pid: int, command: str = "python -c x") -> RunProcess:
    return RunProcess(pid, pid, 0, 0, "S", "-", 0, 0, 1, "python", command, catches=False)


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[str]]:
    code = "def sleeping_here():\n import time; print('ready', flush=True); time.sleep(60)\nsleeping_here()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def py_spy(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "py-spy"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(folder))


def test_stacks_are_read_from_outside_where_that_is_permitted(sleeping: subprocess.Popen[str]) -> None:
    try:
        told = dump_from_outside([seen(sleeping.pid), seen(1, "sh")])
    except LookupError as error:
        pytest.skip(str(error))
    assert "sleeping_here" in told


# Maps a file, and leaves a link in its place.
MAPS = """
import mmap, os, sys, time
place, target = sys.argv[1:]
with open(place, "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
os.unlink(place)
os.symlink(target, f"{place} (deleted)")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user opens no more than his own files")
@pytest.mark.parametrize("in_container", [False, True])
def test_a_link_in_the_place_of_a_mapped_file_leads_out_of_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_container: bool
) -> None:
    monkeypatch.setattr("harness.host.processes.py_spy._has_its_own_root", lambda _: in_container)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    place, fifo = tmp_path / f"libpython{version}.so.1.0", tmp_path / "fifo"
    shutil.copy("/bin/true", place)
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", MAPS, place, fifo], stdout=subprocess.PIPE, text=True)
    opened = Thread(target=lambda: os.close(os.open(fifo, os.O_WRONLY)), daemon=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        opened.start()
        with suppress(LookupError):
            dump_from_outside([seen(process.pid)])
        opened.join(0.5)
        assert opened.is_alive() is in_container
    finally:
        process.kill()
        process.communicate()
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))


# Ends its main thread, and goes on in another one, which may at any time become the process again by `exec`.
WITHOUT_MAIN_THREAD = """
import ctypes, threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print("ready", flush=True), time.sleep(60))).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user opens no more than his own files")
def test_a_process_whose_root_is_not_shown_is_not_read_among_the_files_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_spy(tmp_path, f"touch {tmp_path}/read", monkeypatch)
    process = subprocess.Popen([sys.executable, "-c", WITHOUT_MAIN_THREAD], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(FileNotFoundError):
            Path(f"/proc/{process.pid}/root").stat()
        with suppress(LookupError):
            dump_from_outside([seen(process.pid)])
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "read").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace")
def test_of_a_process_with_its_own_files_stacks_are_read_by_a_py_spy_that_sees_it_alone(
    sleeping: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.host.processes.py_spy._has_its_own_root", lambda _: True)
    try:
        told = dump_from_outside([seen(sleeping.pid)])
    except LookupError as error:
        if "ermi" in str(error):
            pytest.skip(str(error))
        raise
    assert "sleeping_here" in told


def test_where_it_is_not_permitted_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    py_spy(tmp_path, 'echo "Permission Denied: Try running again with elevated permissions" >&2; exit 1', monkeypatch)
    with pytest.raises(LookupError, match="py-spy: Permission Denied"):
        dump_from_outside([seen(os.getpid())])


def test_where_only_c_frames_cannot_be_read_pythons_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    py_spy(tmp_path, 'case "$*" in *native*) exit 1;; *) echo "Thread of $4";; esac', monkeypatch)
    assert dump_from_outside([seen(os.getpid())]) == f"Thread of {os.getpid()}\n"


def test_neither_its_memory_nor_its_output_is_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    py_spy(tmp_path, "ulimit -d", monkeypatch)
    assert dump_from_outside([seen(os.getpid())]) == f"{MOST_MEMORY_BYTES >> 10}\n"
    py_spy(tmp_path, "exec head -c 2000000 /dev/zero", monkeypatch)
    with pytest.raises(LookupError, match="py-spy"):
        dump_from_outside([seen(os.getpid())])


def test_of_hundreds_of_processes_with_long_stacks_some_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of functions may be as long as a program likes: 70 MB were written for 150 processes."""
    py_spy(tmp_path, "exec head -c 1000000 /dev/zero", monkeypatch)
    told = dump_from_outside([seen(os.getpid())] * 20)
    assert MOST_BYTES_OF_ALL <= len(told) <= MOST_BYTES_OF_ALL + MOST_BYTES


def test_one_that_does_not_come_back_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.host.processes.py_spy.SECONDS_EACH", 0.2)
    py_spy(tmp_path, "exec sleep 60", monkeypatch)
    with pytest.raises(LookupError, match=f"process {os.getpid()} could not be read within"):
        dump_from_outside([seen(os.getpid())])


def test_it_may_not_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(LookupError, match="not installed"):
        dump_from_outside([seen(os.getpid())])
