"""Tests of the options before a command: the mirrors, and what of them is typed again before the next command."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from tests.harness.run_matrix import run_matrix

SECRET = "pytorch=https://me:secret@mirror.example/whl/{platform}?a=b"
SHOWN = "pytorch=https://mirror.example/whl/{platform}?a=b"


def given(*words: str) -> list[str]:
    """Return the options that are typed again before a command that follows."""
    return list(main._given(main.cli.make_context("matrix", [*words, "show"])))


def test_what_follows_has_the_mirror_without_its_password() -> None:
    assert given("--index", SECRET, "--target", "gfx1201") == ["--index", SHOWN, "--target", "gfx1201"]


def test_a_mirror_may_be_given_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATRIX_INDEX", SECRET)
    assert given() == ["--index", SHOWN]


def test_a_plan_names_the_mirror_that_was_given() -> None:
    done = run_matrix("--index", SECRET, "plan", "cpu-plain", "--executor", "process", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["indexes"] == {"cpu": "https://mirror.example/whl/cpu?a=b"}
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("index", "said"),
    [("https://mirror.example", "should be SOURCE=URL"), ("pytroch=https://mirror.example", "pytroch")],
)
def test_a_mirror_of_nothing_is_refused(index: str, said: str) -> None:
    done = run_matrix("--index", index, "show")
    assert done.returncode == 2
    assert said in done.stderr


def test_lint_prints_the_lines_that_a_listing_would_add(tmp_path: Path) -> None:
    page = tmp_path / "torch.html"
    page.write_text('<a href="torch-2.99.0%2Brocm7.2-cp311-cp311-manylinux_2_28_x86_64.whl">torch</a>')
    done = run_matrix("lint", "--new", str(page))
    assert done.returncode == 0, done.stderr
    assert "torch2.99.0" in done.stdout
    page.write_text("nothing")
    assert "nothing new" in run_matrix("lint", "--new", str(page)).stdout


def test_a_target_that_is_none_is_refused_by_its_option() -> None:
    done = run_matrix("--target", "foo", "plan", "--executor", "process")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "matrix: --target foo: is no GPU target such as gfx1100\n"
