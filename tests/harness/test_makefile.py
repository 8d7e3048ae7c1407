"""Tests of the commands that the targets of the Makefile would run."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT

OLD_NAME = "WARM_UP"


def recipe(*words: str, **variables: str) -> list[str]:
    """Return the commands that `make WORDS` would run here if everything were set up."""
    run = make(*words, **variables)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def make(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ready = [word for stamp in (".venv/.ready", ".venv/.ready-dev") for word in ("-o", stamp)]
    bare = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LOOKBACK", OLD_NAME, "MAKEFLAGS", "LONG", "SLOW")
    }
    command = ["make", "-n", "--no-print-directory", *ready, *words]
    return subprocess.run(
        command, cwd=CHECKOUT, env={**bare, **variables}, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("target", ["matrix-test", "train"])
def test_the_lookback_has_its_old_name_too(target: str) -> None:
    words = (target, "DATA=merged.csv")
    new = recipe(*words, "LOOKBACK=25")
    assert any(shlex.split(line)[-2:] == ["--lookback", "25"] for line in new)
    assert recipe(*words, f"{OLD_NAME}=25") == new
    assert recipe(*words, **{OLD_NAME: "25"}) == new
    assert recipe(*words) != new


@pytest.mark.parametrize(("target", "variable"), [("matrix-test", "DATA"), ("train", "DATA"), ("train", "CELL")])
def test_a_name_of_any_kind_is_a_word_and_no_command(target: str, variable: str, tmp_path: Path) -> None:
    name = f'it\'s `touch {tmp_path}/a` "$(touch {tmp_path}/b)" $$x, $(shell touch {tmp_path}/c).csv'
    *_, command = recipe(target, f"{variable}={name}")
    words = shlex.split(command)
    assert words[words.index(f"--{variable.lower()}") + 1] == name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "variable", "option"),
    [
        (["matrix-test"], "SELECTION", "--selection"),
        (["matrix-test"], "BUDGET", "--budget"),
        (["matrix-test"], "LOOKBACK", "--lookback"),
        (["matrix-test"], OLD_NAME, "--lookback"),
        (["build", "ROCM=cpu"], "SELECTION", "--selection"),
        (["build"], "ROCM", "--rocm"),
        (["train", "DATA=a.csv"], "LOOKBACK", "--lookback"),
        (["base"], "SUITE", "images/base.sh"),
    ],
)
def test_what_is_typed_for_an_option_is_a_word_and_no_command(
    words: list[str], variable: str, option: str, tmp_path: Path
) -> None:
    text = f'it\'s `touch {tmp_path}/a` "$(touch {tmp_path}/b)" $$x; $(shell touch {tmp_path}/c)'
    for typed in (recipe(*words, f"{variable}={text}"), recipe(*words, **{variable: text})):
        given = shlex.split(typed[-1])
        assert given[given.index(option) + 1] == text
    assert not list(tmp_path.iterdir())


def test_each_package_of_a_base_image_is_a_word(tmp_path: Path) -> None:
    (base,) = recipe("base", f"PACKAGES=git it's $(shell touch {tmp_path}/a) `touch`;")
    assert shlex.split(base)[2:] == ["git", "it's", "$(shell", "touch", f"{tmp_path}/a)", "`touch`;"]
    assert not list(tmp_path.iterdir())


def test_no_command_in_what_is_typed_is_run_for_the_environment_of_recipes(tmp_path: Path) -> None:
    ran, makefile = tmp_path / "ran", tmp_path / "Makefile"
    makefile.write_text(f"include {CHECKOUT}/Makefile\nprobe:\n\t@test \"$$MIRROR\" = '$$(shell touch {ran})'\n")
    names = ("DATA", "OUTPUT", "CELL", "ROCM", "SELECTION", "SUITE", "DEBS", "MIRROR", "DRY_RUN", "MATRIX_BASE")
    typed = [f"{name}=$(shell touch {ran})" for name in names]
    bare = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    subprocess.run(["make", "-f", str(makefile), "probe", *typed], env=bare, check=True, timeout=60)
    assert not ran.exists()


def test_no_command_in_what_a_target_does_not_take_is_run(tmp_path: Path) -> None:
    for typed in (f"OTHER=$(shell touch {tmp_path}/a)", f"';touch${{IFS}}{tmp_path}/b;'=1"):
        assert "make doctor: takes no " in make("doctor", typed).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("matrix-tset", "did you mean `make matrix-test`?"),
        ("xyzzy", "`make help-all` lists them"),
        ("status", "it is `.venv/bin/matrix status`"),
    ],
)
def test_beside_a_mistyped_target_the_nearest_is_named(typed: str, told: str) -> None:
    # Remove MAKEFLAGS: if these tests run under `make -n`, this make would print the recipe instead of failing.
    bare = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    run = subprocess.run(["make", typed], cwd=CHECKOUT, env=bare, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith(f"make: no target or file {typed}; {told}\n")


def test_an_error_of_the_set_up_replaces_the_line_that_tells_how_far_it_is(tmp_path: Path) -> None:
    stand_in = """#!/bin/sh
    case "$*" in
      *"venv.main"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
      *"pip install"*) echo "Collecting click"; echo "ERROR: wrong hash"; echo "    click"; exit 1;;
    esac"""
    (tmp_path / "requirements.txt").write_text("click\n")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "python").write_text(stand_in)
    (tmp_path / "python").chmod(0o755)
    words = ["make", "-f", f"{CHECKOUT}/Makefile", "SETUP_LOCKED=1", f"PYTHON={tmp_path}/python", ".venv/.ready"]
    ours, terminal = os.openpty()
    bare = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    run = subprocess.run(words, cwd=tmp_path, env=bare, stdout=terminal, stderr=terminal, check=False, timeout=60)
    os.close(terminal)
    told = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert run.returncode == 2
    assert "fetching 1 of 1, click\r\033[KERROR: wrong hash\r\n    click\r\n" in told


def test_the_everyday_targets_are_listed_within_a_screen() -> None:
    few, every = (
        subprocess.run(["make", "-s", name], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
        for name in ("help", "help-all")
    )
    assert "  make doctor  " in few
    assert "  make help-all  " in few
    assert sum(-(-len(line) // 80) for line in few.splitlines()) <= 23
    assert set(few.splitlines()) < set(every.splitlines())
    assert "  make bench-policy  " in every


def test_clean_keeps_what_took_long_to_fetch_and_no_clean_removes_results() -> None:
    clean, everything = recipe("clean"), recipe("clean-all")
    # Print the sizes, ask for confirmation if standard input is a terminal, then remove.
    assert [line.split()[:2] for line in clean[:3]] == [["du", "-shc"], ["test", "!"], ["rm", "-rf"]]
    assert " .venv" in clean[2]
    assert not any(".cache" in line.split() for line in clean)
    assert everything[1:] == [clean[1], f"{clean[2]} .cache", *clean[3:]]
    assert not any("results" in line for line in everything)


def test_everything_that_takes_long_is_in_test_all() -> None:
    every = recipe("test-all")
    for target in ("test", "test-faults", "test-docker", "test-oracles", "test-torch"):
        assert set(recipe(target, "LONG=1")) <= set(every), target
    assert not any("not long" in line for line in every)


def test_what_takes_long_is_left_out_unless_asked_for() -> None:
    quick = "not slow and not long"
    for target, marks in {
        **dict.fromkeys(("test-harness", "test-system", "test-app"), quick),
        **dict.fromkeys(("test-faults", "test-docker"), "not long"),
    }.items():
        tests = [line for line in recipe(target) if "-m pytest" in line]
        assert all(f'-m "{marks}"' in line for line in tests), target
        everything = [line for line in recipe(target, "LONG=1") if "-m pytest" in line]
        assert [line.replace(f' -m "{marks}"', "").split() for line in tests] == [line.split() for line in everything]
        assert len(tests) == (2 if target == "test-docker" else 1)


def test_what_is_slow_is_run_by_a_target_of_its_own_and_by_ci() -> None:
    suites = [line for line in recipe("test-slow") if "-m pytest" in line]
    assert len(suites) == 3
    assert all('-m "slow and not long"' in line and "mark[.]slow" in line for line in suites)
    assert "make test-slow" in (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")


def test_what_is_reported_to_pytest_reaches_it() -> None:
    python = ".venv/bin/python -m pytest"
    assert recipe("test-harness", "WORKERS=7") == [f'{python} -n 7 -m "not slow and not long" tests/harness']
    for target in ("test-harness", "test-system", "test-faults"):
        (tests,) = (line for line in recipe(target, WORKERS="7") if "-m pytest" in line)
        assert " -n 7 " in tests, target


def test_the_doctor_is_asked_by_its_own_target() -> None:
    assert recipe("doctor") == [".venv/bin/matrix doctor"]
    assert recipe("doctor", "ARGS=--json") == [".venv/bin/matrix doctor --json"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["train", "DATA=a b.csv", "EPOCHS=5"],
            "make train: takes no EPOCHS=, only DATA= OUTPUT= CELL= LOOKBACK= ARGS=;",
        ),
        (["train", "DATA=a.csv", "EPOCHS=5"], "an option of the command goes into ARGS='--epochs 5'"),
        (["train", "DATA=a.csv", "MATRIX=my.yaml"], "; `.venv/bin/matrix --matrix my.yaml train ...` takes it."),
        (["matrix-test", "TARGET=gfx1100"], "; `.venv/bin/matrix --target gfx1100 run ...` takes it."),
        (["train", "DATA=a.csv", "TARGET=up-30"], "; an option of the command goes into ARGS='--target up-30', "),
        (["matrix-test", "RESULTS=b"], "; `.venv/bin/matrix --results b run ...` takes it."),
        (["doctor", "build", "ROOT=x"], "; `.venv/bin/matrix --root x doctor ...` takes it."),
        (["base", "ROOT=x"], "LOCK= MIRROR=; `images/base.sh --help` explains them."),
        (["matrix-test", "LOOKBAC=25"], "make matrix-test: takes no LOOKBAC=, only BUDGET="),
        (["build", "ROM=6.3"], "make build: takes no ROM=, only ROCM="),
        (["doctor", "SELECTION=all"], "make doctor: takes no SELECTION=, only ARGS="),
        (["base", "SUIT=sid"], "make base: takes no SUIT=, only SUITE="),
        (["build", "rocm=6.3"], "SELECTION= ARGS=; give ROCM=6.3."),
    ],
)
def test_a_variable_that_would_be_ignored_is_refused(words: list[str], told: str) -> None:
    run = make(*words)
    assert (run.returncode, run.stdout) == (2, "")
    assert told in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_what_a_target_takes_and_what_is_in_the_environment_is_not_refused() -> None:
    words = ("train", "DATA=a=b.csv", "OUTPUT=c", "CELL=d", "ARGS=--epochs 5 --seed=7")
    (_, train) = recipe(*words, "PYTHON=python3", "MATRIX_BASE=e", EPOCHS="5")
    assert shlex.split(train) == [
        ".venv/bin/matrix",
        *["train", "--data", "a=b.csv", "--output", "c", "--cell", "d", "--epochs", "5", "--seed=7"],
    ]
    # One line for each target whose variables the help shows to users.
    for given in (
        ("matrix-test", "BUDGET=1h", "DATA=a", "LOOKBACK=25", "SELECTION=all", "ARGS=--yes"),
        ("build", "ROCM=6.3", "DRY_RUN=1", "SELECTION=all", "ARGS=--yes"),
        ("base", "SUITE=sid", "PACKAGES=git", "MIRROR=http://localhost"),
        ("test-harness", "PYTEST=-x", "ANYTHING=1"),
    ):
        assert recipe(*given)
