"""Tests of how uv is run: bounded, locked, and without secrets among its arguments."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.errors import NoAnswerError
from harness.base.files.locks import locked
from harness.environments.python import uv_process


def test_uv_has_a_bound_on_its_memory_and_no_address_of_an_index_among_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\nulimit -d\necho "$@"\necho "$UV_INDEX $UV_DEFAULT_INDEX"\n', encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
    indexes = ("--index", "http://me:secret@a", "--index", "http://b", "--default-index", "http://me:secret@c")
    memory, arguments, variables = uv_process.uv("pip", "compile", *indexes, "pins.in").splitlines()
    assert int(memory) << 10 == uv_process.MOST_MEMORY_BYTES
    assert arguments == "pip compile pins.in --no-progress --no-config"
    assert variables == "http://me:secret@a http://b http://me:secret@c"


def test_the_gpu_of_a_stack_is_not_that_of_the_users_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm's source package would look for that GPU, and refuses one that its index does not have."""
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\necho "$ROCM_SDK_TARGET_FAMILY" "$KEPT"\n', encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx110X-dgpu")
    monkeypatch.setenv("KEPT", "kept")
    assert uv_process.uv("pip", "compile", "pins.in").split() == ["kept"]


@pytest.mark.parametrize("words", [("pip", "compile", "pins.in"), ("build", "--wheel", "rocm.tar.gz")])
def test_an_index_that_sends_in_drops_is_not_waited_for(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\nexec sleep 5\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
    monkeypatch.setattr(uv_process, "RESOLVE_SECONDS", 0.1)
    with pytest.raises(NoAnswerError, match="too slow"):
        uv_process.uv(*words)


def test_an_environment_stays_locked_while_uv_is_at_it_though_its_harness_was_killed(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nkill -9 $PPID\nsleep 1\n", encoding="ascii")
    uv.chmod(0o755)
    code = f"""
import uv
from pathlib import Path
from harness.environments.python import uv_process
from harness.base.files.locks import locked
uv.find_uv_bin = lambda: {str(uv)!r}
with locked(Path({str(tmp_path / "lock")!r})):
    uv_process.uv("pip", "sync")
"""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=False)
    with locked(tmp_path / "lock"):
        assert time.monotonic() - began > 1
