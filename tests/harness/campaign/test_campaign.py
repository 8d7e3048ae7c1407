"""Tests of runs planned together: their order, their GPUs, and which process makes them. Nothing is really run."""

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.base.files.locks import held_locks
from harness.base.files.shared_locks import lock_at_once
from harness.campaign import campaign
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.gpu_locks import GpuClaim, lock_gpus
from harness.campaign.bench.plan import PendingRun, Plan, make_plan, placements
from harness.campaign.campaign import Campaign, begin_or_continue
from harness.campaign.gpus import unhealthy
from harness.campaign.runner import Runner
from harness.campaign.sequence import run_plan as run_plan_module
from harness.campaign.sequence.run_plan import run_plan
from harness.environments import compiled_kernel
from harness.environments.capabilities import Capabilities
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from tests.harness.gpu_tree import a_gpu
from tests.harness.pretending import InstantBench, RecordingDisplay


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts) -> InstantBench:
    """Return a bench on a host with two GPUs."""
    return InstantBench.on(tmp_path, host)


def carry_out(plan: Plan, bench: Bench, display: RecordingDisplay) -> None:
    runner = Runner(bench, plan.workload, display, "c", len(plan.runs))
    run_plan(plan, Campaign("c", bench.results), runner)


CELL, MORE = "rocm6.3-torch2.9.1-plain", "rocm6.3-torch2.9.1-no-sdma"


def carried_out(bench: InstantBench, matrix: Matrix, *cells: str) -> RecordingDisplay:
    workload, display = matrix.workloads["quick"], RecordingDisplay()
    host = Capabilities(bench.gpus, "process", frozenset({"3.11"}), None)
    plan = make_plan([matrix.cells[cell] for cell in cells], workload, 1, host, {}, named=True)
    carry_out(plan, bench, display)
    return display


def test_every_run_of_a_plan_is_made_once(bench: InstantBench, matrix: Matrix) -> None:
    assert carried_out(bench, matrix, CELL, MORE, "cpu-plain").problems == []
    assert sorted(bench.made) == sorted(
        [("cpu-plain", (0,)), *((cell, (gpu,)) for cell in (CELL, MORE) for gpu in (0, 1))]
    )


def test_what_is_free_is_taken_first(bench: InstantBench, matrix: Matrix) -> None:
    """While another process holds GPU 0, the runs on GPU 1 are made; then the campaign waits for GPU 0."""
    other = ExitStack()
    other.enter_context(lock_gpus([GpuClaim(Path("/theirs"), (a_gpu(0),))], root=bench.root))

    def free_when_waited_for(text: str) -> None:
        assert "GPU 0 is in use by run /theirs" in text
        assert [gpus for _, gpus in bench.made] == [(1,), (1,)]
        other.close()

    display = RecordingDisplay()
    display.step = free_when_waited_for  # type: ignore[method-assign]
    workload = matrix.workloads["quick"]
    host = Capabilities((0, 1), "process", frozenset({"3.11"}), None)
    plan = make_plan([matrix.cells[cell] for cell in (CELL, MORE)], workload, 1, host, {}, named=True)
    carry_out(plan, bench, display)
    assert [gpus for _, gpus in bench.made] == [(1,), (1,), (0,), (0,)]


def allowed_side_by_side(bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Run two cells twice each on a host that allows runs side by side; return the ids of the runs made together."""
    together: list[list[str]] = []

    def one_after_the_other(runner: Runner, pending: Sequence[PendingRun], left: float | None) -> list[Any]:
        together.append([one.run_id for one in pending])
        return [runner.run([one], left) for one in pending]

    monkeypatch.setattr(run_plan_module, "run_together", one_after_the_other)
    host = Capabilities(bench.gpus, "process", frozenset({"3.11"}), None)
    cells = [matrix.cells[cell] for cell in (CELL, MORE)]
    plan = make_plan(cells, matrix.workloads["quick"], 2, host, {}, named=True, side_by_side=True)
    carry_out(plan, bench, RecordingDisplay())
    assert Counter(bench.made) == {(cell.id, (gpu,)): 2 for cell in cells for gpu in (0, 1)}
    return together


def test_the_same_cell_and_repeat_go_side_by_side(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = allowed_side_by_side(bench, matrix, monkeypatch)
    assert together == [[f"c-{cell}-gpu{gpu}-{repeat}" for gpu in (0, 1)] for repeat in (1, 2) for cell in (CELL, MORE)]


def test_while_a_gpu_is_somebodys_runs_do_not_go_side_by_side(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs on the other GPU are made meanwhile, one after the other."""
    other = ExitStack()
    other.enter_context(lock_gpus([GpuClaim(Path("/theirs"), (a_gpu(0),))], root=bench.root))
    monkeypatch.setattr(RecordingDisplay, "step", lambda *_: other.close())
    assert allowed_side_by_side(bench, matrix, monkeypatch) == []
    assert [gpus for _, gpus in bench.made] == [(1,)] * 4 + [(0,)] * 4


def test_nobody_is_kept_from_a_gpu_while_an_environment_is_made(bench: InstantBench, matrix: Matrix) -> None:
    environment = bench.environment
    free = []

    def make(cell: Cell, notify: Any = None) -> None:
        with lock_gpus([GpuClaim(Path("/theirs"), (a_gpu(0), a_gpu(1)))], pytest.fail, root=bench.root):
            free.append(cell.id)
        environment(cell)

    bench.environment = make  # type: ignore[method-assign]
    carried_out(bench, matrix, CELL)
    assert free == [CELL]


def test_a_gpu_that_became_unhealthy_takes_no_more_runs(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhealthy, "unhealthy_gpus", lambda *_: {0: "its probe failed"} if bench.made else {})
    display = carried_out(bench, matrix, CELL, MORE)
    assert [gpus for _, gpus in bench.made] == [(0,), (1,), (1,)]
    assert display.problems == ["GPU 0 takes no more runs: its probe failed; 1 that need it are left out"]


def test_with_no_gpu_left_a_campaign_ends_and_says_so(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhealthy, "unhealthy_gpus", lambda *_: {0: "its probe failed", 1: "it was reset"})
    monkeypatch.setattr(unhealthy, "recheck", lambda *_: None)
    display = carried_out(bench, matrix, CELL, "cpu-plain")
    assert bench.made == [("cpu-plain", (0,))]
    assert [text for text in display.problems if text.startswith("no GPU is left to run on")] == display.problems[2:]
    assert len(display.problems) == 3


def test_a_gpu_that_was_unhealthy_is_probed_again_before_anything_is_left_out(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {1: "its probe failed"}

    def recheck(run: Any, *_: object) -> None:
        assert run.gpus == (1,)
        known.clear()

    monkeypatch.setattr(unhealthy, "unhealthy_gpus", lambda *_: dict(known))
    monkeypatch.setattr(unhealthy, "recheck", recheck)
    assert carried_out(bench, matrix, CELL).problems == []
    assert [gpus for _, gpus in bench.made] == [(0,), (1,)]


def test_an_unhealthy_gpu_that_something_still_holds_is_not_waited_for(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhealthy, "unhealthy_gpus", lambda *_: {0: "a process of a run on it cannot be killed"})
    rechecked: list[object] = []
    monkeypatch.setattr(unhealthy, "recheck", lambda *given: rechecked.append(given))
    with lock_gpus([GpuClaim(Path("/theirs"), (a_gpu(0),))], root=bench.root):
        left = subprocess.Popen(["sleep", "60"], pass_fds=held_locks())
    try:
        thread = threading.Thread(target=carried_out, args=(bench, matrix, CELL), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        left.kill()
        left.wait()
    assert (bench.made, rechecked) == ([(CELL, (1,))], [])


def test_a_campaign_is_held_by_one(bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even just after another process has written its campaign file and before it has locked the file."""
    lock, written, second = lock_at_once, threading.Event(), threading.Event()

    def slow_at_first(descriptor: int, file: Path) -> bool:
        if not written.is_set():
            written.set()
            second.wait(0.5)
        return lock(descriptor, file)

    monkeypatch.setattr(campaign, "_key", lambda *_: "key")
    monkeypatch.setattr(campaign, "lock_at_once", slow_at_first)
    runs = tuple(placements(matrix.cells["cpu-plain"], matrix.workloads["quick"], 1, ()))
    plan = Plan(matrix.workloads["quick"], runs, (), 0, 0, None, "", 0, None)
    campaigns: list[tuple[str, bool]] = []
    beside: list[str | None] = []
    together = threading.Barrier(2)

    def begin() -> None:
        with begin_or_continue(plan, bench) as (begun, continued):
            campaigns.append((begun.id, continued))
            beside.append(begun.beside)
            second.set()
            together.wait(10)

    first = threading.Thread(target=begin)
    first.start()
    written.wait(10)
    begin()
    first.join(10)
    assert len({name for name, _ in campaigns}) == 2
    assert not any(continued for _, continued in campaigns)
    assert [name for name in beside if name] == [campaigns[beside.index(None)][0]]
    with begin_or_continue(plan, bench) as (begun, continued):
        assert (begun.id, continued) == (max(name for name, _ in campaigns), True)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, None])
def test_a_file_that_is_no_campaigns_is_passed_over(bench: InstantBench, matrix: Matrix, content: str | None) -> None:
    """Anybody who shares the results folder may have written the file."""
    runs = tuple(placements(matrix.cells["cpu-plain"], matrix.workloads["quick"], 1, ()))
    plan = Plan(matrix.workloads["quick"], runs, (), 0, 0, None, "", 0, None)
    folder = bench.results.folder / "campaigns"
    folder.mkdir(parents=True)
    file = folder / "20990101T000000Z-aaaaaa-c.json"
    file.write_text(content) if content else os.mkfifo(file)
    with begin_or_continue(plan, bench) as (begun, continued):
        assert not continued
        assert begun.id != "20990101T000000Z-aaaaaa-c"


def test_a_campaign_is_continued_whose_first_run_found_no_compiler_for_the_app(
    bench: InstantBench, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_kernel, "KERNELS", tmp_path)
    runs = tuple(placements(matrix.cells["cpu-plain"], matrix.workloads["quick"], 1, ()))
    plan = Plan(matrix.workloads["quick"], runs, (), 0, 0, None, "", 0, None)
    with begin_or_continue(plan, bench) as (begun, _):
        before = compiled_kernel.compiler()
    if before:
        compiled_kernel._refusal(before).write_text("no network\n")
    with begin_or_continue(plan, bench) as (again, continued):
        assert (again.id, continued, compiled_kernel.compiler()) == (begun.id, True, None)


def test_the_time_left_is_reported_from_what_is_known_and_then_from_what_runs_took(
    bench: InstantBench, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    display, times_left = RecordingDisplay(), list[float | None]()
    monkeypatch.setattr(display, "time_left", times_left.append)
    run_cell = bench.run_cell

    def takes_its_time(*given: Any) -> Any:
        record = run_cell(*given)
        record.finished = 30.0
        return record

    monkeypatch.setattr(bench, "run_cell", takes_its_time)
    workload = matrix.workloads["quick"]
    host = Capabilities((0,), "process", frozenset({"3.11"}), None)
    for past in ({}, {CELL: [10.0]}):
        plan = make_plan([matrix.cells[CELL], matrix.cells[MORE]], workload, 1, host, past, named=True)
        carry_out(plan, bench, display)
    assert times_left == [None, 30.0, 20.0, 20.0]
