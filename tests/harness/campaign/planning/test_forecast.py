"""Tests of the forecast of a campaign in stages, which is shown before anything is downloaded."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.bench.bench import Bench
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.planning import forecast as module
from harness.campaign.planning import prepare, stage_evidence
from harness.campaign.planning.forecast import StageForecast, forecast, forecast_lines
from harness.campaign.planning.prepare import prepare_stages
from harness.doctor import ask
from harness.doctor.compatibility import is_outside
from harness.doctor.read import read_machine
from harness.environments.capabilities import Capabilities, capabilities_of
from harness.evidence.files.run_files import Record
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from tests.harness.gpu_tree import TwoGpuHost

HOUR = 3600.0


@pytest.fixture
def stage_forecast(tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> StageForecast:
    """Return the forecast for a host with a screen on its first GPU and with room for two stacks."""
    TwoGpuHost(tmp_path / "root")
    monkeypatch.setattr(module, "check_reboot", lambda _: None)
    monkeypatch.setattr("harness.host.disk_use._free", lambda _: 45 * 10**9)
    options = BenchOptions(Results(tmp_path / "results"), executor="process", root=tmp_path / "root")
    prepared = prepare_stages(options, matrix, "default", 10 * HOUR)
    assert prepared is not None
    # Attempts that an earlier command could not begin say nothing about the host now.
    assert prepared.stages
    assert prepared.stages.host.attempts_since
    able = replace(prepared.capabilities, free_bytes=30 * 10**9, made=frozenset())
    return forecast(replace(prepared, capabilities=able, plan=replace(prepared.plan, free_gb=30.0)))


def test_it_says_what_the_first_answer_takes_and_what_all_would(stage_forecast: StageForecast) -> None:
    lines = "\n".join(forecast_lines(stage_forecast))
    assert "2.2 GB for the first stack" in lines
    assert "good (above 80 % of starts, MTBF above 1.0 h) on both GPUs, at most 10.0 h" in lines
    assert "can reach `good`" in lines
    assert stage_forecast.first_answer_seconds < 1.5 * HOUR
    assert stage_forecast.stacks[0].download_gb < 8


def test_runs_of_other_work_are_no_earlier_runs_of_the_campaign(
    tmp_path: Path, matrix: Matrix, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    TwoGpuHost(tmp_path / "root")
    monkeypatch.setattr(module, "check_reboot", lambda _: None)
    monkeypatch.setattr(stage_evidence, "current_hashes", lambda *_: {})
    results = Results(tmp_path / "results")
    on_gpu = {"host": host_of(results, tmp_path / "root"), "device": "cuda", "gpus": (0,)}
    ours = {"cell": "rocm6.3-torch2.9.1-plain", "stack": "rocm6.3-torch2.9.1"}
    for run_id, of in {"own": {"workload": "app-mine"}, "training": {"workload": "own-data"}, "smoke": {}}.items():
        record = make_record(run_id, **on_gpu, **ours, **of)
        results.begin(record.intent)
        results.finish(record)
    options = BenchOptions(results, executor="process", root=tmp_path / "root")
    prepared = prepare_stages(options, matrix, "default", 10 * HOUR)
    assert prepared
    assert forecast(prepared).earlier_runs == 1


def test_stacks_that_the_driver_is_not_supported_with_are_named_as_the_doctor_does(
    tmp_path: Path, matrix: Matrix, dual_host: HostFacts
) -> None:
    TwoGpuHost(tmp_path / "root")
    options = BenchOptions(Results(tmp_path / "results"), executor="process", root=tmp_path / "root")
    prepared = prepare_stages(options, matrix, "default", 10 * HOUR)
    assert prepared is not None

    def driver_lines(driver: str, free: int = 500) -> list[str]:
        bench = replace(prepared.bench, host=dual_host.model_copy(update={"driver": driver}))
        able = replace(prepared.capabilities, free_bytes=free * 10**9)
        stage_forecast = forecast(replace(prepared, bench=bench, capabilities=able))
        return [line for line in forecast_lines(stage_forecast) if " driver: " in line]

    (line,) = driver_lines("6.16.13")
    assert line.startswith("  driver: amdgpu driver 6.16.13 (amdgpu 30.30) is supported with ROCm 6.3 to 7.2; rocm")
    assert "rocm6.2-torch2.5.1" in line
    assert "rocm6.3-torch2.9.1" not in line
    # Later than AMD's table of windows: nothing is known of it.
    assert "rocm10.0.0-torch2.13.0" not in line
    assert not driver_lines("in-tree")
    # A stack that has no room is not run, so the driver need not support it.
    assert not driver_lines("6.16.13", free=1)


@pytest.mark.parametrize(
    ("driver", "free", "atomics"),
    [("6.16.13", 30, True), ("6.16.13", 30, False), ("6.16.13", 500, True), ("in-tree", 30, True)],
)
def test_stacks_that_the_driver_is_not_supported_with_take_no_room_from_others(
    tmp_path: Path,
    matrix: Matrix,
    dual_host: HostFacts,
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    free: int,
    atomics: bool,
) -> None:
    TwoGpuHost(tmp_path / "root")
    if not atomics:
        link = tmp_path / "root/sys/class/kfd/kfd/topology/nodes/2/io_links/0/properties"
        link.write_text(link.read_text().replace("flags 1\n", "flags 13\n"))
    host = dual_host.model_copy(update={"driver": driver})

    def with_driver(options: BenchOptions, cells: Sequence[Cell]) -> Bench:
        return replace(open_bench(options, cells), host=host)

    def with_room(*args: Any) -> Capabilities:
        return replace(capabilities_of(*args), free_bytes=free * 10**9, made=frozenset())

    monkeypatch.setattr(prepare, "open_bench", with_driver)
    monkeypatch.setattr(prepare, "capabilities_of", with_room)
    options = BenchOptions(Results(tmp_path / "results"), executor="process", root=tmp_path / "root")
    prepared = prepare_stages(options, matrix, "default", 10 * HOUR)
    assert prepared is not None
    told = forecast(prepared)
    outside = [is_outside(driver, matrix.stacks[one.stack]) for one in told.stacks]
    short = driver == "6.16.13" and free == 30
    assert (outside == sorted(outside)) == (short or driver == "in-tree")
    # The doctor says the same.
    monkeypatch.setattr(ask, "measure_write_speed", lambda _: None)
    machine = replace(read_machine(matrix, tmp_path / "root"), host=host)
    assert [gpu.atomics for gpu in machine.training] == [True, atomics]
    cells = matrix.select("default")
    room = ask.measure_room(machine, matrix, cells, prepared.capabilities, prepared.bench.verifying)
    assert list(room.no_room) == [f"{one.stack} ({one.disk_gb:.0f} GB)" for one in told.stacks if one.fits is False]
    # With room for all, the first answer takes no more than the smallest download.
    assert told.stacks[0].stack == ("rocm6.3-torch2.9.1" if short else "rocm10.0.0-torch2.13.0")


def test_what_verifies_is_downloaded_first_and_counts(tmp_path: Path, matrix: Matrix) -> None:
    TwoGpuHost(tmp_path / "root")
    results = Results(tmp_path / "results")
    options = BenchOptions(results, executor="process", root=tmp_path / "root", verifying=matrix.stacks["cpu"])
    prepared = prepare_stages(options, matrix, "default", 10 * HOUR)
    assert prepared is not None
    able = replace(prepared.capabilities, free_bytes=500 * 10**9, made=frozenset())
    stage_forecast = forecast(replace(prepared, capabilities=able))
    (line,) = (line for line in forecast_lines(stage_forecast) if line.startswith("  download: "))
    assert line.startswith("  download: 0.3 GB for cpu, in which each run is verified, 2.2 GB for the first stack, ")
    with_cpu_made = forecast(replace(prepared, capabilities=replace(able, made=frozenset({"cpu"}))))
    (without,) = (line for line in forecast_lines(with_cpu_made) if line.startswith("  download: "))
    assert without.startswith("  download: 2.2 GB for the first stack, ")
    all_made = tuple(replace(one, download_gb=0.0, disk_gb=0.0) for one in stage_forecast.stacks)
    assert any(
        one.startswith("  disk: nothing more on ") for one in forecast_lines(replace(with_cpu_made, stacks=all_made))
    )
    nothing = "nothing (all of it is on this machine)"
    for stacks, download in (
        ((all_made[0], *stage_forecast.stacks[1:]), f"{nothing} for the first stack, "),
        (all_made, nothing),
    ):
        (line_made,) = (
            one for one in forecast_lines(replace(with_cpu_made, stacks=stacks)) if one.startswith("  download: ")
        )
        assert line_made.startswith(f"  download: {download}")
    assert [float(one.split(" GB if")[0].split(", ")[-1]) for one in (line, without)] == [
        pytest.approx(sum(one.download_gb for one in stage_forecast.stacks) + 0.3, abs=0.06),
        pytest.approx(sum(one.download_gb for one in stage_forecast.stacks), abs=0.06),
    ]


def test_the_limits_of_each_run_are_reported(stage_forecast: StageForecast) -> None:
    (line,) = (line for line in forecast_lines(stage_forecast) if line.startswith("  each run: "))
    assert line.endswith(" at most 36 GB and 100,000 files in its folder")
    (line,) = (line for line in forecast_lines(replace(stage_forecast, pids=4096)) if line.startswith("  each run: "))
    assert line.endswith(" files in its folder, 4,096 processes and threads")


def test_stacks_without_room_are_named_and_those_that_fit_are_run(stage_forecast: StageForecast) -> None:
    fitting = [one.stack for one in stage_forecast.stacks if one.fits]
    assert fitting[:2] == ["rocm10.0.0-torch2.13.0", "rocm7.14.0-torch2.12.0"]
    (line,) = (line for line in forecast_lines(stage_forecast) if line.startswith("  no room beside those for: "))
    assert "rocm7.2-torch2.14.0 (20 GB)" in line
    assert not any(one in line for one in fitting)


def test_a_time_is_forecast_only_if_a_stack_has_room(stage_forecast: StageForecast) -> None:
    without = replace(stage_forecast, stacks=tuple(replace(one, fits=False) for one in stage_forecast.stacks))
    assert [
        any(line.startswith("  time: first answer") for line in forecast_lines(told))
        for told in (stage_forecast, without)
    ] == [True, False]
    assert "  stacks, in this order: none" in forecast_lines(without)


@pytest.mark.parametrize(
    ("hours", "tier"),
    [(10, "can reach `good`"), (3, "can reach `candidate`"), (0.5, "30 min can reach no verdict but `seen`")],
)
def test_a_budget_reaches_a_tier_or_none(stage_forecast: StageForecast, hours: float, tier: str) -> None:
    reachable = next((name for name, seconds in stage_forecast.tier_seconds.items() if seconds <= hours * HOUR), None)
    shorter = replace(stage_forecast, budget_seconds=hours * HOUR, reachable=reachable)
    assert tier in "\n".join(forecast_lines(shorter))


def test_it_says_what_a_hung_gpu_costs_this_user(stage_forecast: StageForecast) -> None:
    assert stage_forecast.screens[0]
    assert any("a screen is connected to GPU 0" in line for line in forecast_lines(stage_forecast))
    assert "may neither" in forecast_lines(replace(stage_forecast, may_reset=False, may_reboot=False))[-2]
    assert "--reboot-when-unhealthy" in forecast_lines(replace(stage_forecast, may_reset=False, may_reboot=True))[-2]
    assert "this user may reset it" in forecast_lines(replace(stage_forecast, may_reset=True))[-2]


def test_a_host_without_a_gpu_has_no_stages(tmp_path: Path, matrix: Matrix) -> None:
    (tmp_path / "root").mkdir()
    options = BenchOptions(Results(tmp_path / "results"), executor="process", root=tmp_path / "root")
    assert prepare_stages(options, matrix, "default", 10 * HOUR) is None


@pytest.mark.parametrize(("left", "words"), [(1, "on both GPUs stays unknown"), (2, "on all 3 GPUs stays unknown")])
def test_what_a_screen_leaves_open_is_of_all_gpus_of_the_host(
    stage_forecast: StageForecast, left: int, words: str
) -> None:
    assert words in "\n".join(forecast_lines(replace(stage_forecast, gpus=left, screened=(0,))))
