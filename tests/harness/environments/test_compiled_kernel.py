"""Tests of the compiled part of the app: made from the source alone, found by the app, and in the wheel."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base import certificates
from harness.base.errors import UserError
from harness.base.paths import APP
from harness.environments import app_wheel, compiled_kernel, environment
from harness.environments.compiled_kernel import place_kernel

FOUND = "from vpoc.kernel import library; print(library())"

pytestmark = pytest.mark.skipif(compiled_kernel.compiler() is None, reason="no compiler for this platform")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a copy of the app's folder, without the library."""
    return Path(shutil.copytree(APP, tmp_path / "app", ignore=environment.NOT_SOURCE))


def loaded(app: Path) -> str:
    """Return the library that the app finds in an interpreter without numpy, as text."""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(app)}
    return subprocess.run(
        [sys.executable, "-c", FOUND], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


def test_the_app_finds_it(app: Path) -> None:
    assert loaded(app) == "None"
    (app / "vpoc" / "kernel" / "kernel-old.so").touch()
    assert place_kernel(app)
    [library] = (app / "vpoc" / "kernel").glob("*.so")
    assert str(library) in loaded(app)


@pytest.mark.slow
def test_the_same_source_gives_the_same_bytes_by_a_compiler_that_is_as_locked_and_not_kept(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = re.search(r"^ziglang==(\S+)", compiled_kernel.LOCK.read_text(), re.MULTILINE)
    assert version is not None
    with compiled_kernel.fetched_compiler() as program:
        told = subprocess.run([program, "version"], capture_output=True, text=True, check=True).stdout
        assert told.startswith(".".join(version[1].split(".")[:2]))
        assert program.is_relative_to(compiled_kernel.KERNELS)
        monkeypatch.setattr(compiled_kernel, "fetched_compiler", lambda: nullcontext(program))
        made = []
        for place in (compiled_kernel.KERNELS, tmp_path / "kernels"):
            monkeypatch.setattr(compiled_kernel, "KERNELS", place)
            place_kernel(app)
            [library] = (app / compiled_kernel.FOLDER).glob("*.so")
            made.append((library.name, library.read_bytes()))
        assert made[0] == made[1]
        assert str(tmp_path).encode() not in made[0][1]

        monkeypatch.setattr(compiled_kernel, "APP", app)
        (app / compiled_kernel.FOLDER / "naked.c").write_text("int f(void) { return g(); }\n")
        with pytest.raises(UserError, match=r"cannot be compiled: .*\bg\b") as caught:
            place_kernel(app)
        assert "\n" not in str(caught.value)
    assert not program.exists()


def test_a_compiler_that_a_killed_command_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_kernel, "KERNELS", tmp_path)
    fetch = "import os, sys; from pathlib import Path; from harness.environments import compiled_kernel as c"
    fetch += "; c.KERNELS = Path(sys.argv[1]); c.subprocess.run = lambda *_, **__: os._exit(9); c.ensure_kernel()"
    killed = subprocess.run([sys.executable, "-c", fetch, tmp_path], check=False)
    assert killed.returncode == 9
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] != []

    @contextmanager
    def none() -> Iterator[Path]:
        raise compiled_kernel.CompilerMissingError("no network")
        yield tmp_path

    monkeypatch.setattr(compiled_kernel, "fetched_compiler", none)
    assert compiled_kernel.ensure_kernel() is None
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()] == []


def test_the_compiler_is_fetched_with_the_authority_that_the_user_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = []

    def pip(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        trusted.append(Path(env["PIP_CERT"]).read_text(encoding="ascii"))
        return subprocess.CompletedProcess((), 1, "", "no network")

    (tmp_path / "ca.pem").write_text("of our own", encoding="ascii")
    monkeypatch.setenv("MATRIX_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setattr(certificates, "CACHE", tmp_path)
    monkeypatch.setattr(compiled_kernel, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(compiled_kernel, "subprocess", SimpleNamespace(run=pip))
    with (
        pytest.raises(compiled_kernel.CompilerMissingError, match="cannot be fetched: no network"),
        compiled_kernel.fetched_compiler(),
    ):
        pytest.fail("there is none")
    # Behind the authorities of the system, where it has any.
    assert "of our own" in trusted[0]


def test_it_is_in_the_wheel(tmp_path: Path) -> None:
    wheels = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        wheels.append(app_wheel.app_wheel(tmp_path / name))
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert wheels[0].name.endswith(f"-py3-none-{compiled_kernel.PLATFORM}.whl")
    with zipfile.ZipFile(wheels[0]) as wheel:
        [library] = [name for name in wheel.namelist() if name.endswith(".so")]
        assert "Tag: py3-none-manylinux_2_17_x86_64\n" in wheel.read("vpoc-0.1.0.dist-info/WHEEL").decode()
        wheel.extractall(tmp_path / "installed")
    assert library in loaded(tmp_path / "installed")


def test_without_a_compiler_the_wheel_is_for_any_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_kernel, "compiler", lambda: None)
    wheel = app_wheel.app_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_source_and_compiler_decide_the_hash(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "APP", app)
    hashes = [environment.app_hash()]
    place_kernel(app)
    assert environment.app_hash() == hashes[0], "what is built is not source"
    with (app / compiled_kernel.FOLDER / "naked.c").open("a") as source:
        source.write("/* other */\n")
    hashes.append(environment.app_hash())
    monkeypatch.setattr(environment, "compiler", lambda: ["another"])
    hashes.append(environment.app_hash())
    assert len(set(hashes)) == 3


def test_where_the_compiler_cannot_be_fetched_the_app_goes_without_and_says_so_once(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[None] = []

    @contextmanager
    def unreachable() -> Iterator[Path]:
        tries.append(None)
        raise compiled_kernel.CompilerMissingError("the compiler of the app's kernel cannot be fetched: no route")
        yield Path()

    monkeypatch.setattr(compiled_kernel, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(compiled_kernel, "fetched_compiler", unreachable)
    with_it = environment.app_hash()
    said: list[str] = []
    for _ in range(2):
        assert not place_kernel(app, said.append)
    assert len(tries) == 1
    assert [line for line in said if "no route" in line and "`make kernel` tries again" in line] == said[1:]
    # The app without the library is another environment.
    assert environment.app_hash() != with_it
    compiled_kernel.try_again()
    assert environment.app_hash() == with_it
    assert not place_kernel(app)
    assert len(tries) == 2


@pytest.mark.slow
def test_a_fetch_that_fails_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"ziglang==0.0.1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(compiled_kernel, "LOCK", lock)
    monkeypatch.setattr(compiled_kernel, "KERNELS", tmp_path / "kernels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with (
        pytest.raises(compiled_kernel.CompilerMissingError, match=r"cannot be fetched: .*ziglang") as caught,
        compiled_kernel.fetched_compiler(),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "kernels").iterdir()) == []
