import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.paths import LOCKS
from harness.base.storage import locked
from harness.environments import pins
from harness.matrix.cells import Matrix, Stack


def expected_pins(stack: Stack) -> str:
    """What `images/locks/<stack>.in` must say."""
    if stack.torch_from_base:
        return "polars\nclick\nmatplotlib\n"
    label = f"+rocm{stack.rocm}" if stack.rocm else "+cpu"
    # torch up to 2.2 was compiled against numpy 1.
    old = tuple(map(int, (stack.torch or "0.0").split(".")[:2])) <= (2, 2)
    return f"torch=={stack.torch}{label}\n{'numpy==1.26.4' if old else 'numpy'}\npolars\nclick\nmatplotlib\n"


def test_every_stack_has_its_pins_and_no_other(matrix: Matrix) -> None:
    expected = {s.name: expected_pins(s) for s in matrix.stacks.values() if s.torch and s.framework == "torch"}
    assert {file.stem: file.read_text() for file in LOCKS.glob("*.in")} == expected


def test_torch_is_pinned_with_its_label_so_that_no_other_build_can_come(matrix: Matrix) -> None:
    assert expected_pins(matrix.stacks["cpu"]).startswith("torch==2.13.0+cpu\n")
    assert expected_pins(matrix.stacks["rocm6.2.4-torch2.6.0"]).startswith("torch==2.6.0+rocm6.2.4\n")


def test_old_torch_gets_the_numpy_it_was_built_for(matrix: Matrix) -> None:
    assert "numpy==1.26.4" in expected_pins(matrix.stacks["rocm5.7-torch2.2.2"])
    assert "numpy==1" not in expected_pins(matrix.stacks["rocm7.0-torch2.10.0"])


@pytest.mark.parametrize(
    "file",
    [
        "images/locks/cpu.txt",
        "images/locks/cpu-debian13-torch2.6.0.txt",
        "requirements.txt",
        "tests/app/requirements.txt",
    ],
)
def test_everything_in_a_lock_has_a_hash_and_no_place(file: str) -> None:
    text = Path(file).read_text()
    requirements = re.findall(r"^([a-z0-9-]+)==\S+ .*?(?=^[a-z]|\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^[a-z0-9-]+==.*?(?=^[a-z]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(requirements) == len(blocks) > 2
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


def test_no_nvidia_package_is_in_the_cpu_stack() -> None:
    assert not re.search(r"^(nvidia|triton|cuda)", (LOCKS / "cpu.txt").read_text(), re.MULTILINE)


def test_a_base_that_brings_torch_brings_its_numpy_too(matrix: Matrix) -> None:
    for stack in matrix.stacks.values():
        lock = LOCKS / f"{stack.name}.txt"
        if lock.is_file():
            assert bool(re.search(r"^numpy==", lock.read_text(), re.MULTILINE)) is not stack.torch_from_base


def test_wheels_held_locally_are_tried_before_the_index(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    first, second = pins.sources(matrix.stacks["cpu"])
    assert first == ["--find-links", "/a", "--find-links", "/b"]
    assert second[:4] == first
    assert "https://download.pytorch.org/whl/cpu" in second
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert pins.sources(matrix.stacks["cpu"]) == [second[4:]]


def test_a_lock_that_cannot_be_resolved_is_one_line_and_leaves_nothing(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    unreachable = matrix.stacks["rocm6.3-torch2.9.1"].model_copy(update={"rocm": "6.3"})
    monkeypatch.setattr("harness.matrix.wheels.INDEX", "http://127.0.0.1:9/whl")
    with pytest.raises(UserError) as caught:
        pins.ensure_lock(unreachable)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "locks").glob("*.txt")) == []


def test_an_environment_stays_locked_while_uv_is_at_it_though_its_harness_was_killed(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nkill -9 $PPID\nsleep 1\n", encoding="ascii")
    uv.chmod(0o755)
    code = f"""
from pathlib import Path
from harness.environments import pins as locks
from harness.base.storage import locked
locks.find_uv_bin = lambda: {str(uv)!r}
with locked(Path({str(tmp_path / "lock")!r})):
    locks.uv("pip", "sync")
"""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=False)
    with locked(tmp_path / "lock"):
        assert time.monotonic() - began > 1
