"""Tests of the command `isolate`, as far as it chooses what to run. Nothing is really run."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.files.storage import write_json
from harness.cli import isolate
from harness.cli.main import cli
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.fingerprint import machine_of
from harness.host.simulated import dual_7900xt

CELL = "rocm6.3-torch2.9.1-plain"


@pytest.mark.parametrize(
    ("failed", "options", "repeated"),
    [
        ("standard", (), ("standard", "ddp", ((0, 1),), "merged.csv", "process")),
        ("own-data", (), ("quick", "ddp", ((0, 1),), "merged.csv", "process")),
        ("standard", ("--workload", "quick"), ("quick", "single", ((1,), (0,)), None, "process")),
    ],
)
def test_it_repeats_what_the_failures_did_unless_a_workload_is_named(
    failed: str,
    options: tuple[str, ...],
    repeated: tuple[Any, ...],
    tmp_path: Path,
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, results = dual_7900xt(tmp_path / "host").root, Results(tmp_path / "results")
    host = make_record().intent.host.model_copy(update={"machine": machine_of(root)})
    bars = tmp_path / "merged.csv"
    bars.write_text(STAND_IN_BARS)
    work = {
        "data": {"path": str(bars), "sha256": "d" * 64},
        "workload": failed,
        "options": {"strategy": "ddp"},
        "host": host,
        "executor": "process",
    }
    record = make_record("hung", "hung", "no-progress", cell=CELL, device="cuda", gpus=(0, 1), **work)
    write_json(results.begin(record.intent) / "record.json", record.model_dump(mode="json", by_alias=True))
    asked: list[Any] = []

    def isolate_fault(bench: Any, question: Any, workload: Any, *_: object) -> Any:
        asked.append((workload.name, workload.strategy, question.gpus, bench.data, bench.executor_name))
        return SimpleNamespace(sentence="found", answered=True)

    monkeypatch.setattr(isolate, "isolate_fault", isolate_fault)
    words = ["--root", str(root), "--results", str(results.folder), "isolate", CELL, *options]
    other = ["--other", "rocm6.2-torch2.5.1-plain", "--executor", "process"][: 4 if options else 2]
    done = CliRunner().invoke(cli, [*words, *other])
    ((*ran, data, executor),) = asked
    assert (*ran, data and data.name, executor) == repeated, done
    assert f"runs of workload {repeated[0]}" in done.stderr
    assert "; at most 40, each of " in done.stderr
