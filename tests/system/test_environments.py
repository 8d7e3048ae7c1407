"""Tests of real environments."""

import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.paths import APP, ENVIRONMENTS
from harness.environments import environment as environments
from harness.environments.environment import STAMP, Environment, ensure_environment, identify
from harness.environments.python import interpreters, pins
from harness.environments.python.pins import lock_file
from harness.matrix.cells import Matrix


@pytest.mark.slow
def test_the_environment_is_as_locked(small_matrix: Matrix, environment: Environment) -> None:
    show = "import importlib.metadata as m, json, torch; print(json.dumps([d.name for d in m.distributions()]))"
    run = subprocess.run([environment.python, "-c", show], capture_output=True, text=True, check=True)
    names = {name.lower() for name in json.loads(run.stdout)}
    lock = lock_file(small_matrix.stacks["cpu"])
    locked = {line.split("==")[0] for line in lock.read_text().splitlines() if "==" in line}
    assert {name.replace("_", "-") for name in names} == locked
    assert not any(name.startswith(("nvidia", "triton")) for name in names)


def test_its_identity_needs_no_search_for_an_interpreter(
    small_matrix: Matrix, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = small_matrix.stacks["cpu"]
    stamp = json.loads((ENVIRONMENTS / "cpu" / STAMP).read_text())
    assert stamp.pop("build") == "own"
    wanted = {"interpreter": stamp.pop("interpreter"), "lock": stamp.pop("lock"), "app": environment.identity["app"]}
    assert stamp == {"python": "3.11"}
    assert environment.version == platform.python_version()
    searched: list[object] = []
    monkeypatch.setattr(environments, "choose_python", searched.append)
    assert identify(stack) == wanted
    other = stack.model_copy(update={"name": "another"})
    assert identify(other) is None
    assert searched == [other]


@pytest.mark.long
def test_what_was_interrupted_while_it_was_made_is_made_again(
    tmp_path: Path, small_matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    stack = small_matrix.stacks["cpu"]
    made = ensure_environment(stack)
    # As after an interrupted installation, the environment has no stamp.
    (tmp_path / "cpu" / STAMP).unlink()
    (tmp_path / "cpu" / "bin" / "python").unlink()
    assert ensure_environment(stack) == made
    assert subprocess.run([made.python, "--version"], capture_output=True, check=True)


def test_a_run_keeps_the_app_it_was_started_with(
    tmp_path: Path, small_matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "app"
    shutil.copytree(APP, source, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
    monkeypatch.setattr(environments, "APP", source)
    monkeypatch.setattr(environments, "APPS", tmp_path / "apps")
    stack = small_matrix.stacks["cpu"]
    before = ensure_environment(stack)
    package = source / "vpoc" / "__init__.py"
    package.write_text(package.read_text().replace('"0.1.0"', '"9.9.9"'))
    after = ensure_environment(stack)
    assert before.hash(small_matrix.presets["plain"]) != after.hash(small_matrix.presets["plain"])
    assert before.python == after.python
    for made, version in ((before, "0.1.0"), (after, "9.9.9")):
        told = subprocess.run(
            [made.python, "-m", "vpoc", "--version"],
            capture_output=True,
            text=True,
            check=True,
            env=made.variables,
        )
        assert version in told.stdout


def test_a_missing_python_is_one_line(small_matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    def uv(*words: str) -> str:
        raise UserError("uv python install failed: no route")

    monkeypatch.setattr(interpreters, "choose_python", lambda _stack: None)
    monkeypatch.setattr(interpreters, "uv", uv)
    with pytest.raises(UserError, match=r"Python 3\.11 is not installed and could not be fetched from"):
        ensure_environment(small_matrix.stacks["cpu"])


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_refused(
    tmp_path: Path, small_matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path / "envs")
    lock = pins.lock_file(small_matrix.stacks["cpu"])
    tampered = tmp_path / "cpu.txt"
    lines = lock.read_text(encoding="utf-8").splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("torch=="))
    digest = lines[at + 1].split("sha256:")[1].split()[0]
    lines[at + 1] = lines[at + 1].replace(digest, "0" * 64)
    tampered.write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setattr(pins, "ensure_lock", lambda _stack, **_which: tampered)
    monkeypatch.setenv("UV_HTTP_RETRIES", "2")
    with pytest.raises(UserError, match=r"uv .* failed: .*(hash|Hash)"):
        ensure_environment(small_matrix.stacks["cpu"])
    assert not (tmp_path / "envs" / "cpu" / STAMP).exists()
