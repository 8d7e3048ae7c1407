"""What the targets of the Makefile would run."""

import os
import subprocess

import pytest

from harness.base.paths import CHECKOUT

OLD_NAME = "WARM_UP"


def recipe(*words: str, **variables: str) -> list[str]:
    """The commands that `make WORDS` would run here, as if everything were set up."""
    ready = [word for stamp in (".venv/.ready", ".venv/.ready-dev") for word in ("-o", stamp)]
    bare = {name: value for name, value in os.environ.items() if name not in ("LOOKBACK", OLD_NAME, "MAKEFLAGS")}
    command = ["make", "-n", "--no-print-directory", *ready, *words]
    run = subprocess.run(
        command, cwd=CHECKOUT, env={**bare, **variables}, capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.splitlines()


@pytest.mark.parametrize("target", ["matrix-test", "train"])
def test_the_lookback_has_its_old_name_too(target: str) -> None:
    words = (target, "DATA=merged.csv")
    new = recipe(*words, "LOOKBACK=25")
    assert any(line.rstrip().endswith(" 25") for line in new)
    assert recipe(*words, f"{OLD_NAME}=25") == new
    assert recipe(*words, **{OLD_NAME: "25"}) == new
    assert recipe(*words) != new


def test_clean_keeps_what_took_long_to_fetch_and_no_clean_removes_results() -> None:
    clean, everything = ([line for line in recipe(target) if "rm " in line] for target in ("clean", "clean-all"))
    assert any(".venv" in line for line in clean)
    assert not any(".cache" in line.split() for line in clean)
    assert [line for line in everything if line not in clean] == ["rm -rf .cache"]
    assert not any("results" in line for line in everything)


def test_everything_that_takes_long_is_in_test_all() -> None:
    every = recipe("test-all")
    for target in ("test", "test-faults", "test-docker", "test-oracles", "test-torch"):
        assert set(recipe(target, "LONG=1")) <= set(every), target
    assert not any("not long" in line for line in every)


def test_what_takes_long_is_left_out_unless_asked_for() -> None:
    for target in ("test-harness", "test-system", "test-faults", "test-docker", "test-app"):
        (tests,) = (line for line in recipe(target) if "-m pytest" in line)
        assert '-m "not long"' in tests, target
        (everything,) = (line for line in recipe(target, "LONG=1") if "-m pytest" in line)
        assert everything.split() == tests.replace(' -m "not long"', "").split()


def test_what_is_told_to_pytest_reaches_it() -> None:
    python = ".venv/bin/python -m pytest"
    assert recipe("test-harness", "WORKERS=7") == [f'{python} -n 7 -m "not long" tests/harness']
    assert recipe("test-harness", "PYTEST=-x -n 3", "LONG=1") == [f"{python} -x -n 3  tests/harness"]


def test_the_doctor_is_asked_by_its_own_target() -> None:
    assert recipe("doctor") == [".venv/bin/matrix doctor "]
    assert recipe("doctor", "ARGS=--json") == [".venv/bin/matrix doctor --json"]
