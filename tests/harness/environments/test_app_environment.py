import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from harness.base.paths import APP, CHECKOUT

TESTS = CHECKOUT / "tests" / "app"
LOCKS = sorted((TESTS / "locks").glob("torch-*.txt"))


def locked(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_the_oldest_torch_is_locked() -> None:
    assert "torch-2.2.2.txt" in [lock.name for lock in LOCKS]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_all_that_the_app_and_its_tests_need_now(lock: Path) -> None:
    app = tomllib.loads((APP / "pyproject.toml").read_text())["project"]["dependencies"]
    for line in [*app, *(TESTS / "requirements.in").read_text().split()]:
        needed = Requirement(line)
        version = locked(lock)[needed.name.replace("_", "-")]
        assert needed.specifier.contains(version), f"{lock.name}: {version} is not {line}; resolve it again"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_holds_the_torch_it_is_named_after_and_a_numpy_for_it(lock: Path) -> None:
    versions = locked(lock)
    assert lock.stem == f"torch-{versions['torch']}"
    if versions["torch"] in SpecifierSet("<2.3"):
        assert versions["numpy"] == "1.26.4"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_everything_in_a_lock_has_a_hash_and_no_place(lock: Path) -> None:
    blocks = re.findall(r"^[a-z0-9-]+==.*?(?=^[a-z]|\Z)", lock.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(locked(lock)) > 20
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in lock.read_text()


def test_a_torch_that_was_never_released_is_one_line() -> None:
    command = [sys.executable, str(TESTS.parent / "app_environment.py"), "2.2.7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 1
    assert done.stderr.startswith("torch 2.2.7 is not a known release; known are ")
    assert done.stderr.count("\n") == 1
