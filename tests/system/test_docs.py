"""The commands in README and docs are run as they stand, in a folder with the data they name."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.evidence.app_files import InputFile

# Their examples need a Docker engine: tests/images runs them.
WITH_ENGINE = (CHECKOUT / "docs" / "images.md", CHECKOUT / "docs" / "known-good.md")
DOCUMENTS = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]


def examples(document: Path) -> Iterator[str]:
    """The lines of the `sh` blocks of a document, without what they say in comments."""
    for block in re.findall(r"^```sh\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield from (line.split("  #")[0].strip() for line in block.splitlines() if line.strip())


@pytest.fixture
def place(tmp_path: Path, data: InputFile) -> Path:
    """A folder like a checkout, with the bars and the VIX that the examples read."""
    for name in (".venv", ".cache", "matrix.yaml", "Makefile", "requirements.txt", "pyproject.toml"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    header, *rows = Path(data.path).read_text(encoding="utf-8").splitlines()
    assert header == "ts,open,high,low,close,volume,vix"
    table = [row.split(",") for row in rows]
    bars = [",".join(bar[:6]) for n, bar in enumerate(table) if n % 5 == 0]
    (tmp_path / "es-5min.csv").write_text("\n".join(["ts,open,high,low,close,volume", *bars]) + "\n", encoding="utf-8")
    days = [next(group) for _, group in groupby(table, key=lambda bar: bar[0][:10])]
    vix = [f"{bar[0][:10]},{bar[6]},{bar[6]},{bar[6]},{bar[6]}" for bar in days if bar[6]]
    (tmp_path / "vix-daily.csv").write_text("\n".join(["DATE,OPEN,HIGH,LOW,CLOSE", *vix]) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "document",
    [d for d in DOCUMENTS if d not in WITH_ENGINE and "```sh" in d.read_text(encoding="utf-8")],
    ids=lambda d: d.name,
)
def test_every_example_runs(document: Path, place: Path) -> None:
    for line in examples(document):
        words = shlex.split(line)
        # `make matrix-test` and `make train` are run for real by CI and in test_make.
        command = ["make", "-n", *words[1:]] if words[0] == "make" else words
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_make_train_leaves_a_model_that_loads(place: Path, data: InputFile) -> None:
    words = [f"DATA={data.path}", f"OUTPUT={place / 'TRAINING'}", "WARM_UP=20", "ARGS=--epochs 1 --name mine"]
    done = subprocess.run(["make", "train", *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    endings = [".pt", "_checkpoints", "_curves.csv", "_curves.png", "_metadata.json"]
    left = ["attempts.jsonl", *(f"mine{ending}" for ending in endings)]
    assert sorted(f.name for f in (place / "TRAINING").iterdir()) == left
    load = "import sys, torch; print(sorted(torch.load(sys.argv[1], weights_only=True))[:2])"
    command = [".venv/bin/matrix", "exec", "best", "python", "-c", load, str(place / "TRAINING" / "mine.pt")]
    assert "features" not in subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stderr


def test_make_train_says_what_it_needs() -> None:
    done = subprocess.run(["make", "train"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DATA=merged.csv" in done.stderr


def test_make_alone_lists_the_targets() -> None:
    listed = subprocess.run(["make"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    for target in ("matrix-test", "build", "base", "train", "test", "test-docker", "bench", "clean"):
        assert re.search(rf"^  make {target} +\S", listed, re.MULTILINE)


def test_every_link_leads_somewhere() -> None:
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
