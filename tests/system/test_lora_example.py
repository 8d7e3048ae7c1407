"""Tests of a short form of `examples/lora`, killed, resumed and judged, in an interpreter with its requirements."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.base.paths import CHECKOUT

EXAMPLE = CHECKOUT / "examples" / "lora"
PYTHON = Path(os.environ.get("LORA_PYTHON") or CHECKOUT / ".cache" / "lora" / "env" / "bin" / "python")
STEPS, KILLED_AFTER = 8, 4
pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    asked = (PYTHON, "-c", "import accelerate, peft, torch, transformers")
    if not PYTHON.is_file() or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} lacks examples/lora/requirements.txt; LORA_PYTHON names one that has it")


def command(output: Path, *words: str) -> list[str]:
    shorter = ("--examples", str(32 * STEPS), "--checkpoint-every", "0", "--loss-below", "5")
    return [str(PYTHON), str(EXAMPLE / "train.py"), "--cpu", "--output", str(output), *shorter, *words]


def result(output: Path) -> Any:
    return json.loads((output / "result.json").read_text())


def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = subprocess.run(command(tmp_path / "whole"), capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    steps = re.findall(r"^step (\d+)/(\d+) loss ([\d.]+)$", whole.stdout, re.MULTILINE)
    assert [(int(one), int(all_)) for one, all_, _ in steps] == [(step, STEPS) for step in range(1, STEPS + 1)]
    assert whole.stdout.splitlines()[-1] == "criterion met"

    with subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"step {KILLED_AFTER + 1}/"):
                process.kill()
    resumed = subprocess.run(command(tmp_path / "killed", "--resume"), capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    again = re.search(r"^resumed after step (\d+)$", resumed.stdout, re.MULTILINE)
    assert again
    assert int(again[1]) >= KILLED_AFTER
    assert result(tmp_path / "killed")["loss"] == result(tmp_path / "whole")["loss"]


def test_a_criterion_that_is_missed_is_said(tmp_path: Path) -> None:
    missed = subprocess.run(
        command(tmp_path, "--time-limit", "0", "--examples", "64"), capture_output=True, text=True, check=False
    )
    assert missed.returncode == 1
    assert "not below 0" in missed.stdout.splitlines()[-1]
    assert result(tmp_path)["missed"][0].startswith("it took")


def test_the_requirements_never_replace_the_stacks_torch() -> None:
    locked = re.findall(r"^([a-z0-9-]+)==", (EXAMPLE / "requirements.txt").read_text(), re.MULTILINE)
    stack = re.findall(r"^([a-z0-9-]+)==", (CHECKOUT / "images" / "locks" / "cpu.txt").read_text(), re.MULTILINE)
    assert {"accelerate", "peft", "transformers"} <= set(locked)
    assert not set(locked) & set(stack)
