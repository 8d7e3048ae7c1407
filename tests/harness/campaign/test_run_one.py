"""Tests of one run of a cell. Nothing is really run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.base.errors import UserError
from harness.campaign import run_one as run_one_module
from harness.campaign.bench.dispatch import RunRequest
from harness.campaign.bench.display import Display
from harness.campaign.bench.open_bench import BenchOptions
from harness.campaign.run_one import ANOTHER_KIND, run_one, run_requested
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from tests.harness.scripted_bench import ScriptedBench


@pytest.fixture
def run(
    tmp_path: Path,
    host: HostFacts,
    make_record: Callable[..., Record],
    matrix: Matrix,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Record]:
    """Return a function that runs a cell whose run has the given outcome."""

    def run(outcome: str, run_id: str | None = None, cell: str = "cpu-plain") -> Record:
        results = Results(tmp_path / "results")
        bench = ScriptedBench(results, ProcessExecutor(), host, ())
        bench.make_record, bench.outcome_of, bench.made = make_record, lambda _: outcome, []
        monkeypatch.setattr(run_one_module, "open_bench", lambda *_: bench)
        return run_one(BenchOptions(results), matrix.cells[cell], matrix.workloads["quick"], run_id, Display())

    return run


def test_a_run_that_comes_to_a_host_of_another_kind_is_not_begun_nor_one_again_that_has_its_record(
    tmp_path: Path, host: HostFacts, make_record: Callable[..., Record], matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, results = matrix.cells["cpu-plain"], Results(tmp_path / "results")
    bench = ScriptedBench(results, ProcessExecutor(), host, ())
    bench.make_record, bench.outcome_of, bench.made = make_record, lambda _: "completed", []
    monkeypatch.setattr(run_one_module, "open_bench", lambda *_: bench)
    record = make_record("r1", "host-fault", "not-begun")
    monkeypatch.setattr(run_one_module, "_not_begun", lambda *values: record if values[-1] == ANOTHER_KIND else None)
    request = RunRequest(
        run_id="r1",
        campaign=None,
        repeat=1,
        gpus=(),
        stack=cell.stack,
        preset=cell.preset,
        workload=matrix.workloads["quick"],
        executor="process",
        kind="another",
    )
    assert run_requested(BenchOptions(results), request, None, Display()) == record
    # The scheduler queued the job of the run once more.
    results.finish(done := make_record("r1"))
    for kind in ("another", host.kind):
        again = request.model_copy(update={"kind": kind})
        assert run_requested(BenchOptions(results), again, None, Display()) == done
    assert bench.made == []


@pytest.mark.parametrize("outcome", ["completed", "failed", "interrupted"])
def test_its_record_is_returned_also_where_the_engine_interrupted_it(run: Callable[..., Record], outcome: str) -> None:
    assert run(outcome).outcome == outcome


def test_a_run_that_has_its_record_is_not_run_again(run: Callable[..., Record]) -> None:
    first = run("failed", "mine")
    assert run("completed", "mine") == first


def test_the_id_of_another_cells_run_is_refused(run: Callable[..., Record]) -> None:
    run("completed", "mine")
    with pytest.raises(UserError, match="--run-id mine: is a run of cpu-plain; choose another id"):
        run("completed", "mine", "cpu-no-sdma")


@pytest.mark.parametrize("part", ["stack", "preset", "verifying"])
def test_a_request_names_no_folder(part: str, matrix: Matrix) -> None:
    cell = matrix.cells["cpu-plain"]
    parts: dict[str, Any] = {"stack": cell.stack, "preset": cell.preset, "verifying": cell.stack}
    request = RunRequest(
        run_id="r1",
        campaign=None,
        repeat=1,
        gpus=(),
        workload=matrix.workloads["quick"],
        executor="process",
        **(parts | {part: parts[part].model_copy(update={"name": "../../zz"})}),
    )
    with pytest.raises(ValidationError, match=rf"{part}.name"):
        RunRequest.parse(request.model_dump_json(by_alias=True).encode())
