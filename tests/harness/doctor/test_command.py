"""Tests of `matrix doctor` on simulated roots, and once on this very machine."""

import json
import platform
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.base.paths import CHECKOUT
from harness.campaign.answered import Command, LastAnswer, remember_answer
from harness.cli.by_make import BY_MAKE
from harness.cli.doctor import doctor
from harness.cli.shared import Settings
from harness.doctor.checks import CHECKS, check_id
from harness.evidence.records import Results
from harness.host.fingerprint import machine_of
from tests.harness.doctor import trees


def run(*words: str, root: Path = Path("/"), expected: int = 0) -> str:
    settings = Settings(CHECKOUT / "matrix.yaml", root / "results", None, root)
    result = CliRunner().invoke(doctor, words, obj=settings)
    assert result.exit_code == expected, result.output
    return click.unstyle(result.output)


def as_json(root: Path = Path("/"), expected: int = 0) -> list[dict[str, Any]]:
    printed = json.loads(run("--json", root=root, expected=expected))
    assert printed["schema"] == 2
    assert printed.get("simulated", False) == (root != Path("/"))
    findings: list[dict[str, Any]] = printed["findings"]
    return findings


@pytest.fixture
def without_engine_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what only this very machine can tell about its disk and its Docker engine."""
    monkeypatch.setattr("harness.cli.doctor.ask", lambda machine, _: machine)


@pytest.mark.usefixtures("without_engine_and_disk")
def test_a_healthy_host(tmp_path: Path) -> None:
    trees.dual_7900xt(tmp_path)
    findings = as_json(tmp_path)
    assert {finding["level"] for finding in findings} == {"ok", "note"}
    assert set(findings[0]) == {"check", "level", "what", "why", "fix"}


@pytest.mark.usefixtures("without_engine_and_disk")
def test_a_problem_is_exit_status_1_and_a_warning_is_not(tmp_path: Path) -> None:
    tree = trees.with_igpu(tmp_path)
    assert {f["check"] for f in as_json(tmp_path) if f["level"] == "warning"} == {"integrated-gpu"}
    tree.remove("dev/kfd")
    assert {f["check"] for f in as_json(tmp_path, expected=1) if f["level"] == "problem"} == {"kfd"}


@pytest.mark.usefixtures("without_engine_and_disk")
def test_a_machine_without_a_gpu_can_run_cpu_cells(tmp_path: Path) -> None:
    trees.none(tmp_path)
    text = run(root=tmp_path)
    assert "no AMD GPU was found" in text
    assert "the cells of the cpu stack can run here" in text
    assert re.search(r"^\d+ checks are fine; --all shows them$", text, re.MULTILINE)


@pytest.mark.usefixtures("without_engine_and_disk")
def test_the_end_says_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = trees.dual_7900xt(tmp_path)
    assert run(root=tmp_path).splitlines()[-1] == "Next: .venv/bin/matrix run"
    monkeypatch.setenv(BY_MAKE, "1")
    assert run(root=tmp_path).splitlines()[-1] == "Next: make matrix-test"
    # A campaign that was begun is continued, and no other one is begun.
    continues = LastAnswer(next_command=Command(command="matrix run --budget 8h", why="continues this campaign"))
    remember_answer(Results(tmp_path / "results"), machine_of(tmp_path), continues)
    assert run(root=tmp_path).splitlines()[-1] == "Next: matrix run --budget 8h"
    tree.remove("dev/kfd")
    solved = "Next, once these problems are solved: "
    assert run(root=tmp_path, expected=1).splitlines()[-1] == f"{solved}make doctor"
    monkeypatch.delenv(BY_MAKE)
    assert run(root=tmp_path, expected=1).splitlines()[-1].startswith(solved)


def test_native_windows_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    [finding] = as_json(expected=1)
    assert (finding["check"], finding["level"], finding["fix"]) == ("operating-system", "problem", "wsl --install")
    assert "ROCm's wheels, /dev/kfd" in finding["why"]
    assert "docs/doctor.md#wsl2" in finding["why"]


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert [finding["what"] for finding in as_json(expected=1)] == ["this is Darwin"]


def test_this_machine() -> None:
    result = CliRunner().invoke(doctor, ["--json"], obj=Settings(CHECKOUT / "matrix.yaml", Path("results"), None))
    findings = json.loads(result.output)["findings"]
    assert result.exit_code == any(finding["level"] == "problem" for finding in findings)
    assert {"what-runs", "docker", "glibc", "kernel-log"} <= {finding["check"] for finding in findings}
    assert {finding["check"] for finding in findings} <= {check_id(check) for check in CHECKS}
