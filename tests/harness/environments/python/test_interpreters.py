from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.environments.python import interpreters
from harness.environments.python.interpreters import RUNNING, choose_python, ensure_python, find_python
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack


@pytest.fixture(autouse=True)
def asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    interpreters._refused.clear()
    find_python.cache_clear()
    yield
    interpreters._refused.clear()
    find_python.cache_clear()


@pytest.fixture
def cpu(matrix: Matrix) -> Stack:
    return matrix.stacks["cpu"]


def pretend_installed(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """Pretend that the host has Python in these versions only."""
    found = {version: Path("/usr/bin", f"python{version}") for version in versions}
    monkeypatch.setattr(interpreters, "find_python", found.get)


def version_of(chosen: tuple[str, Path] | None) -> str | None:
    return chosen[0] if chosen else None


def test_the_interpreter_this_tool_runs_on_is_found_before_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "uv", lambda *words: pytest.fail(f"uv was asked: {words}"))
    found = find_python(RUNNING)
    assert found is not None
    assert ".venv" not in found.parts
    assert found.is_file()


def test_a_python_that_no_host_has_is_not_found() -> None:
    assert find_python("3.2") is None


def test_what_pyenv_holds_is_found_though_it_is_not_switched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uv(*words: str) -> str:
        raise UserError("uv python find failed: pyenv: python3.12: command not found")

    monkeypatch.setattr(interpreters, "uv", uv)
    monkeypatch.setattr(interpreters, "RUNNING", "3.10")
    pyenv = tmp_path / "pyenv" / "versions"
    assert find_python("3.12") is None
    find_python.cache_clear()
    for name in ("3.12.9", "3.12.10", "3.12.11", "3.12-dev", "3.1.2"):
        (pyenv / name / "bin").mkdir(parents=True)
    for name in ("3.12.9", "3.12.10"):
        (pyenv / name / "bin" / "python3.12").touch()
    assert find_python("3.12") == pyenv / "3.12.10" / "bin" / "python3.12"


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        (("3.11", "3.12", "3.13", "3.14"), "3.11"),
        (("3.12", "3.13"), "3.13"),
        (("3.14",), "3.14"),
        (("3.10", "3.15"), None),
        ((), None),
    ],
)
def test_a_stack_takes_its_images_python_or_another_that_its_torch_has_wheels_for(
    cpu: Stack, monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], chosen: str | None
) -> None:
    monkeypatch.setattr(interpreters, "RUNNING", "3.10")
    pretend_installed(monkeypatch, *installed)
    assert version_of(choose_python(cpu)) == chosen


def test_the_python_this_tool_runs_on_goes_before_newer_ones(cpu: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, "3.12", "3.13", "3.14")
    monkeypatch.setattr(interpreters, "RUNNING", "3.12")
    assert version_of(choose_python(cpu)) == "3.12"
    pretend_installed(monkeypatch, "3.11", "3.12", "3.13")
    assert version_of(choose_python(cpu)) == "3.11"


def test_an_old_torch_takes_no_python_it_has_no_wheels_for(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    old = matrix.stacks["rocm6.2-torch2.5.1"]
    assert old.pythons == ("3.11", "3.12")
    pretend_installed(monkeypatch, "3.13", "3.14")
    assert choose_python(old) is None
    pretend_installed(monkeypatch, "3.12", "3.13")
    assert version_of(choose_python(old)) == "3.12"


def test_what_is_not_installed_is_fetched_and_it_is_said_from_where(
    cpu: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    asked: list[tuple[str, ...]] = []
    fetched = tmp_path / "python3.11"

    def uv(*words: str) -> str:
        asked.append(words)
        if words[1] == "find" and ("python", "install", "--no-bin", "3.11") not in asked:
            raise UserError("none")
        return f"{fetched}\n"

    monkeypatch.setattr(interpreters, "uv", uv)
    monkeypatch.setattr(interpreters, "RUNNING", "3.10")
    monkeypatch.delenv(interpreters.MIRROR, raising=False)
    assert ensure_python(cpu, said.append) == ("3.11", fetched)
    [line] = said
    assert line == f"Python 3.11 is not installed; fetching it from {interpreters.SOURCE}"


def test_what_cannot_be_fetched_is_one_line_with_the_remedy_and_tried_once(
    cpu: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def uv(*words: str) -> str:
        tries.append(words)
        raise UserError("uv python install failed: no route")

    pretend_installed(monkeypatch)
    monkeypatch.setattr(interpreters, "uv", uv)
    monkeypatch.setenv(interpreters.MIRROR, "http://127.0.0.1:9/pythons")
    for _ in range(2):
        with pytest.raises(UserError, match=r"^Python 3\.11 is not installed and could not be fetched") as caught:
            ensure_python(cpu)
        assert "no route" in str(caught.value)
        assert "http://127.0.0.1:9/pythons" in str(caught.value)
        assert "install it, or name a mirror in UV_PYTHON_INSTALL_MIRROR" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert len(tries) == 1
