"""Tests that run the commands in README, CONTRIBUTING and docs as they stand, in a folder with the data they name."""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.files.app_files import InputFile
from tests.system.conftest import in_this_process

# These pages need an engine or Slurm: tests/images and tests/slurm run their examples, here only options are checked.
WITH_ENGINE = CHECKOUT / "docs" / "images.md"
WITH_SLURM = CHECKOUT / "docs" / "slurm.md"
DOCUMENTS = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
# These commands take minutes and are tested elsewhere; here only their options are checked.
LONG = ("minimise", "compare", "inject", "isolate")
# These start the app, for seconds each, or need a Docker engine.
TESTED_ELSEWHERE = (
    "run",
    "run-cell",
    "train",
    "exec",
    "build",
    "push",
    "pull",
    "save",
    "load",
    "verify",
    "keys",
    "promote",
    "demote",
    "tags",
    "export",
    "import",
)
# These start no app, and are quicker in this process.
OF_THE_HARNESS = ("plan", "status", "report", "explain", "show", "simulate")
# `doctor` exits with 1 if something on this machine should be fixed.
MAY_END_WITH_1 = ("doctor",)


def examples(document: Path) -> Iterator[str]:
    """Yield the lines of a document's `sh` blocks without comments; of the page about Slurm only those of `matrix`."""
    for block in re.findall(r"^```sh\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        lines = (re.split(r"\s#\s", line)[0].strip() for line in block.splitlines() if line.strip())
        yield from (line for line in lines if document != WITH_SLURM or line.startswith(".venv/bin/matrix "))


def command_of(words: list[str]) -> str:
    """Return the command in a line: the first word after the options of all commands, each of which has a value."""
    at = 1
    while words[at].startswith("--") and words[at] != "--help":
        at += 2
    return words[at]


def as_tried(line: str, *, quick: bool) -> list[str]:
    """Return the words to run for a line: make targets are only expanded, and runs on AMD GPUs are only planned."""
    words = shlex.split(line)
    if words[0] == "make":
        return ["make", "-n", *words[1:]]
    command = command_of(words) if words[0].endswith("/matrix") else ""
    if command == "run" and words[2].startswith("rocm") and "--on" not in words:
        return [words[0], "plan", *words[2:]]
    if (command in LONG and "--list" not in words) or (quick and command in TESTED_ELSEWHERE):
        # With --help, unknown options are still refused before the help is printed.
        return [*words, "--help"]
    return words


def tried(line: str, place: Path, *, quick: bool) -> None:
    """Run a line in a folder and require success; `matrix` in this process, unless it would become or start the app."""
    words = as_tried(line, quick=quick)
    command = command_of(words) if words[0] == ".venv/bin/matrix" else "exec"
    if command in OF_THE_HARNESS or (quick and command != "exec"):
        with contextlib.chdir(place):
            done = in_this_process(words)
    else:
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False, timeout=280)
    allowed = (0, 1) if words[1] in MAY_END_WITH_1 else (0,)
    assert done.returncode in allowed, f"{line}\n{done.stdout}{done.stderr}"


@pytest.fixture
def place(tmp_path: Path, data: InputFile) -> Path:
    """Return a folder like a checkout, with the bars and the VIX that the examples read."""
    locks = [file.name for file in CHECKOUT.glob("requirements*.txt")]
    for name in (".venv", ".cache", "app", "images", "tests", "matrix.yaml", "Makefile", "pyproject.toml", *locks):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "wheels").mkdir()
    # The folder into which another example imports; with `quick`, the import is not carried out.
    (tmp_path / "elsewhere").mkdir()
    header, *rows = Path(data.path).read_text(encoding="utf-8").splitlines()
    assert header == "ts,open,high,low,close,volume,vix"
    table = [row.split(",") for row in rows]
    bars = [",".join(bar[:6]) for n, bar in enumerate(table) if n % 5 == 0]
    (tmp_path / "es-5min.csv").write_text("\n".join(["ts,open,high,low,close,volume", *bars]) + "\n", encoding="utf-8")
    days = [next(group) for _, group in groupby(table, key=lambda bar: bar[0][:10])]
    vix = [f"{bar[0][:10]},{bar[6]},{bar[6]},{bar[6]},{bar[6]}" for bar in days if bar[6]]
    (tmp_path / "vix-daily.csv").write_text("\n".join(["DATE,OPEN,HIGH,LOW,CLOSE", *vix]) + "\n", encoding="utf-8")
    return tmp_path


WITH_EXAMPLES = [one for one in DOCUMENTS if "```sh" in one.read_text(encoding="utf-8")]


# The tests of images and of Slurm run these examples, but are long or skipped; other pages are run whole below.
@pytest.mark.slow
@pytest.mark.parametrize("document", [WITH_ENGINE, WITH_SLURM], ids=lambda one: one.name)
def test_the_options_of_examples_that_are_run_elsewhere_are_known(
    document: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `matrix --wheels` changes this variable.
    monkeypatch.setenv("UV_FIND_LINKS", os.environ.get("UV_FIND_LINKS", ""))
    for line in examples(document):
        tried(line, place, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [one for one in WITH_EXAMPLES if one not in (WITH_ENGINE, WITH_SLURM)], ids=lambda one: one.name
)
def test_every_example_runs(document: Path, place: Path) -> None:
    for line in examples(document):
        tried(line, place, quick=False)
    if document.name == "training.md":
        assert_a_model_that_loads(place / "TRAINING")


def assert_a_model_that_loads(folder: Path) -> None:
    endings = [".pt", "_checkpoints", "_curves.csv", "_curves.png", "_metadata.json"]
    left = ["attempts.jsonl", *(f"synthetic{ending}" for ending in endings)]
    assert sorted(file.name for file in folder.iterdir()) == left
    load = "import sys, torch; print(sorted(torch.load(sys.argv[1], weights_only=True))[:2])"
    command = [".venv/bin/matrix", "exec", "best", "python", "-c", load, str(folder / "synthetic.pt")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout == "['bar_seconds', 'feature_options']\n"


def test_make_train_is_matrix_train(place: Path) -> None:
    words = ["DATA=my bars.csv", "OUTPUT=my models", "LOOKBACK=20", "ARGS=--epochs 1"]
    make = ["make", "--no-print-directory", "-n", "train", *words]
    done = subprocess.run(make, cwd=place, capture_output=True, text=True, check=True)
    command = shlex.split(done.stdout.splitlines()[-1])
    told = ["--data", "my bars.csv", "--output", "my models", "--lookback", "20", "--epochs", "1"]
    assert command == [".venv/bin/matrix", "train", *told]


def test_make_train_says_what_it_needs() -> None:
    # With --old-file, make does not reinstall the environment that runs this test when a lock file is newer.
    words = ["make", "--old-file", ".venv/.ready", "train"]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DATA=merged.csv" in done.stderr


@pytest.mark.parametrize(("words", "further"), [([], False), (["help-all"], True)])
def test_make_lists_its_targets(words: list[str], further: bool) -> None:
    listed = subprocess.run(["make", *words], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    listed_targets = set(re.findall(r"^  make (\S+) +\S", listed, re.MULTILINE))
    assert {"matrix-test", "build", "base", "train", "test", "clean"} <= listed_targets
    assert (listed_targets >= {"test-docker", "bench"}) == further
