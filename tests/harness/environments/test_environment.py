"""Tests of which build of torch an environment gets; no environment is really made."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import InUseError, UserError
from harness.base.paths import LOCKS
from harness.environments import environment, in_use
from harness.environments.capabilities import capabilities_of
from harness.environments.environment import STAMP, ensure_environment, host_environment, identify
from harness.environments.python import interpreters, pins
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack

UNREACHABLE = "uv failed: Failed to fetch: https://there/torch/"


class FakeUv:
    """A stand-in for uv that makes empty environments.

    - `refuses`: returns the error of a command; None: the command succeeds.
    - `synced`: the names of the locks that were installed.
    """

    def __init__(self, refuses: Callable[[list[str]], str | None]) -> None:
        self.refuses = refuses
        self.synced: list[str] = []

    def __call__(self, *words: str | Path) -> str:
        arguments = [str(word) for word in words]
        if why := self.refuses(arguments):
            raise UserError(why)
        if arguments[0] == "venv":
            folder = Path(arguments[-1])
            (folder / "bin").mkdir(parents=True, exist_ok=True)
            (folder / "bin" / "python").unlink(missing_ok=True)
            (folder / "bin" / "python").symlink_to(arguments[arguments.index("--python") + 1])
            (folder / "lib" / "python3.13").mkdir(parents=True, exist_ok=True)
            (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.13.5\n", encoding="ascii")
        if arguments[:2] == ["pip", "sync"]:
            self.synced.append(next(Path(word).stem for word in arguments if word.endswith(".txt")))
        return ""


@pytest.fixture
def stack(matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """Return the cpu stack, on a host with Python 3.13."""
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "envs")
    monkeypatch.setattr(environment, "install_app", lambda _notify: tmp_path / "app")
    monkeypatch.setattr(environment, "app_hash", lambda: "app")
    chosen = ("3.13", Path(sys.executable).resolve())
    monkeypatch.setattr(environment, "choose_python", lambda _stack: chosen)
    monkeypatch.setattr(interpreters, "choose_python", lambda _stack: chosen)
    monkeypatch.setattr(pins, "LOCKS", Path(shutil.copytree(LOCKS, tmp_path / "locks")))
    monkeypatch.setattr(pins, "CACHE", tmp_path / "cache")
    return matrix.stacks["cpu"]


def no_index(arguments: list[str]) -> str | None:
    """Refuse each command that needs PyTorch's index, because only PyPI can be reached."""
    pypi = any("-pypi" in Path(word).name for word in arguments)
    return None if pypi or arguments[0] == "venv" else UNREACHABLE


def use(uv: FakeUv, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    for module in (pins, environment):
        monkeypatch.setattr(module, "uv", uv)
    return uv


def test_an_environment_has_the_hosts_python_and_its_lock(
    matrix: Matrix, host: HostFacts, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> frozenset[str]:
        return capabilities_of(host, None, [matrix.cells["cpu-plain"]], None).made

    own = tmp_path / "locks" / "cpu-py3.13.txt"
    own.write_text("torch==2.13.0+cpu --hash=sha256:" + "0" * 64 + "\n", encoding="utf-8")
    uv = use(FakeUv(lambda _: None), monkeypatch)
    assert identify(stack) is not None, "what would be made is known before"
    assert not made()
    first = ensure_environment(stack)
    assert uv.synced == ["cpu-py3.13"]
    assert first.version == "3.13.5"
    assert identify(stack) == first.identity
    assert ensure_environment(stack) == first
    assert uv.synced == ["cpu-py3.13"], "what is up to date is not made again"
    assert made() == {"cpu"}
    own.write_text(own.read_text().replace("0" * 64, "1" * 64), encoding="utf-8")
    assert not made()
    second = ensure_environment(stack)
    assert len(uv.synced) == 2
    assert second.identity["lock"] != first.identity["lock"]


def test_another_python_makes_another_environment(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locks" / "cpu-py3.13.txt").write_text("here", encoding="utf-8")
    uv = use(FakeUv(lambda _: None), monkeypatch)
    before = ensure_environment(stack)
    monkeypatch.setattr(interpreters, "choose_python", lambda _stack: ("3.11", Path("/bin/sh").resolve()))
    after = ensure_environment(stack)
    assert uv.synced == ["cpu-py3.13", "cpu"]
    assert before.identity["interpreter"] != after.identity["interpreter"]
    assert before.identity["lock"] != after.identity["lock"]


@pytest.mark.parametrize("ends", [True, False])
def test_an_environment_in_which_a_process_runs_is_not_made_again(
    ends: bool, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was changed, as by `git pull`, while another command trains there."""
    lock = tmp_path / "locks" / "cpu-py3.13.txt"
    lock.write_text("here", encoding="utf-8")
    uv = use(FakeUv(lambda _: None), monkeypatch)
    python = ensure_environment(stack).python
    lock.write_text("changed", encoding="utf-8")
    monkeypatch.setattr(environment, "SHORT_LOCK_SECONDS", 60.0 if ends else 0.2)
    monkeypatch.setattr(in_use, "LOOK_SECONDS", 0.1)
    said: list[str] = []
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE) as process:

        def notify(line: str) -> None:
            said.append(line)
            if ends:
                process.kill()
                process.wait()

        if ends:
            ensure_environment(stack, notify)
        else:
            with pytest.raises(InUseError, match=rf"but process {process.pid} runs in it; give the command again"):
                ensure_environment(stack, notify)
            process.kill()
    assert said[0].endswith(f"has to be made again: waiting for the end of process {process.pid}, which runs in it")
    assert len(uv.synced) == 1 + ends
    assert (python.parents[1] / STAMP).exists(), "what was made before is still there"


def test_the_copy_of_an_app_that_is_edited_meanwhile_is_named_by_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "app" / "vpoc"
    source.mkdir(parents=True)
    (source / "cli.py").write_text("before", encoding="utf-8")

    def copied(*words: Any, **options: Any) -> Any:
        (source / "cli.py").write_text("after", encoding="utf-8")
        return copytree(*words, **options)

    copytree = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", copied)
    monkeypatch.setattr(environment, "APP", tmp_path / "app")
    monkeypatch.setattr(environment, "APPS", tmp_path / "apps")
    for name in ("ensure_kernel", "place_kernel", "compiler"):
        monkeypatch.setattr(environment, name, lambda *_: None)
    app = environment.install_app()
    assert (app.name, (app / "vpoc" / "cli.py").read_text(encoding="utf-8")) == (environment.app_hash(), "after")
    assert list(app.parent.iterdir()) == [app]


def test_a_rehearsal_does_not_say_that_it_downloads(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "REHEARSAL", tmp_path)
    (tmp_path / "locks" / "cpu-py3.13.txt").write_text("here", encoding="utf-8")
    use(FakeUv(lambda _: None), monkeypatch)
    said: list[str] = []
    ensure_environment(stack, said.append)
    assert said == ["making the environment of stack cpu: its wheels come from the index on loopback"]


def test_where_pytorchs_index_cannot_be_reached_the_cpu_stack_takes_pypis_build_and_says_what_it_costs(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = use(FakeUv(no_index), monkeypatch)
    said: list[str] = []
    made = ensure_environment(stack, said.append)
    assert uv.synced == ["cpu-pypi"]
    making, line = said
    assert making.endswith(" stack cpu: downloads at most 0.3 GB, takes 1.3 GB of disk and some minutes")
    assert "torch 2.13.0 for Python 3.13: https://download.pytorch.org/whl/cpu cannot be reached" in line
    assert "2.8 GB to fetch, 5.1 GB of disk" in line
    assert identify(stack) == made.identity
    assert json.loads((tmp_path / "envs" / "cpu" / STAMP).read_text())["build"] == "pypi"
    # The environment is kept, so the index is not tried again.
    uv.refuses = lambda _: UNREACHABLE
    assert ensure_environment(stack) == made


def test_a_wheel_that_is_wrong_is_no_reason_to_take_another_build(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = use(FakeUv(lambda words: "uv failed: Hash mismatch" if words[:2] == ["pip", "compile"] else None), monkeypatch)
    with pytest.raises(UserError, match="Hash mismatch"):
        ensure_environment(stack)
    assert uv.synced == []


def test_a_rocm_stack_has_no_build_on_pypi(matrix: Matrix, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = use(FakeUv(no_index), monkeypatch)
    with pytest.raises(UserError, match="https://there/torch/ does not answer"):
        ensure_environment(matrix.stacks["rocm6.3-torch2.9.1"])
    assert uv.synced == []
    assert stack.accelerator == "cpu"


def test_without_any_network_both_reasons_are_reported_in_one_line(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeUv(lambda words: None if words[0] == "venv" else UNREACHABLE), monkeypatch)
    with pytest.raises(
        UserError, match=r"torch/ does not answer; then, PyPI's build: .*torch/ does not answer"
    ) as caught:
        ensure_environment(stack)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "envs" / "cpu" / STAMP).exists()


def test_pypis_build_is_refused_where_it_does_not_fit(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = use(FakeUv(no_index), monkeypatch)
    usage = shutil.disk_usage("/")._replace(free=2 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"needs 5\.1 GB in .*envs/cpu, where 2\.0 GB are free; free some"):
        ensure_environment(stack)
    assert uv.synced == []


def test_a_named_interpreter_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="lacks"):
        host_environment(Path(sys.executable))
    assert not (tmp_path / "ran").exists()
