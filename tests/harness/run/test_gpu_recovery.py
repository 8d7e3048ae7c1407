import time
from collections.abc import Callable
from typing import Any

import pytest

from harness.host.facts import GpuFacts
from harness.host.fingerprint import read_gpus
from harness.host.gpus.gpu_reset import Reset
from harness.run.gpu_probe import Probed
from harness.run.gpu_recovery import (
    MEMORY_SECONDS,
    SLACK_BYTES,
    Actions,
    Step,
    look_for_resets,
    recover_gpu,
    wait_for_memory,
)
from tests.harness.gpu_tree import ADDRESSES, TwoGpuHost, a_gpu

BEFORE = 100 << 20
WELL, UNHEALTHY = Probed(True, "5 checks passed"), Probed(False, "matmul-fp32 hung: no end within 60 s")
SILENT = Probed(None, "the probe could not be started: the engine is gone")


Memory = Callable[[float], int | None]


class SimulatedGpu:
    """A synthetic GPU with a clock that advances only by its actions; `done` lists its probes and resets."""

    def __init__(self, *probes: Probed, reset: Reset | None = None) -> None:
        self.seconds = 0.0
        self.done: list[str] = []
        self.memory: Memory = lambda _: BEFORE
        self._probes = iter(probes)
        self._reset = reset or Reset(False, "not reset: a screen is attached to it (DP-1)")

    @property
    def actions(self) -> Actions:
        return Actions(
            lambda _: self.memory(self.seconds), self._probe, self._do_reset, lambda: self.seconds, self._sleep
        )

    def _probe(self, _: GpuFacts) -> Probed:
        self.done.append("probe")
        self.seconds += 7
        return next(self._probes)

    def _do_reset(self, _: GpuFacts) -> Reset:
        self.done.append("reset")
        self.seconds += 3
        return self._reset

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds


def recovered(gpu: SimulatedGpu, **changes: Any) -> list[Step]:
    return list(recover_gpu(a_gpu(1), BEFORE, gpu.actions, **{"proven": True, **changes}))


def shown(steps: list[Step]) -> list[tuple[str, bool | None]]:
    return [(step.check, step.good) for step in steps]


def test_memory_that_comes_back_late_is_waited_for_and_timed() -> None:
    gpu = SimulatedGpu()
    gpu.memory = lambda seconds: (20 << 30) if seconds < 12 else BEFORE + SLACK_BYTES
    step = wait_for_memory(a_gpu(1), BEFORE, gpu.actions)
    assert (step.good, step.gpu, step.seconds) == (True, 1, 12.0)
    assert step.detail == "356 MiB in use, 100 MiB before the run"


def test_memory_that_stays_is_not_waited_for_longer_than_a_minute() -> None:
    gpu = SimulatedGpu(WELL)
    gpu.memory = lambda _: BEFORE + SLACK_BYTES + 1
    memory, probe = recovered(gpu)
    assert (memory.good, memory.seconds) == (False, MEMORY_SECONDS)
    assert memory.detail.startswith("not back after 60 s: 356 MiB in use")
    # Only the probe decides whether the GPU can be used.
    assert probe.good


def test_of_memory_that_was_waited_for_only_shortly_nothing_is_concluded() -> None:
    gpu = SimulatedGpu()
    gpu.memory = lambda _: BEFORE + SLACK_BYTES + 1
    step = wait_for_memory(a_gpu(1), BEFORE, gpu.actions, 2)
    assert (step.good, step.seconds) == (None, 2.0)


@pytest.mark.parametrize(("before", "now"), [(None, 1), (1, None)])
def test_a_driver_that_tells_nothing_is_not_waited_for(before: int | None, now: int | None) -> None:
    gpu = SimulatedGpu()
    gpu.memory = lambda _: now
    step = wait_for_memory(a_gpu(1), before, gpu.actions)
    assert (step.good, gpu.seconds) == (None, 0)


def test_memory_that_cannot_be_read_for_a_moment_is_read_again() -> None:
    readings = iter([20 << 30, None, None, BEFORE])
    gpu = SimulatedGpu()
    gpu.memory = lambda _: next(readings)
    step = wait_for_memory(a_gpu(1), BEFORE, gpu.actions)
    assert (step.good, step.detail) == (True, "100 MiB in use, 100 MiB before the run")


def test_a_gpu_that_passes_its_probe_is_left_alone() -> None:
    gpu = SimulatedGpu(WELL)
    assert shown(recovered(gpu)) == [("memory", True), ("probe", True)]
    assert gpu.done == ["probe"]


def test_a_gpu_that_fails_is_reset_and_probed_again() -> None:
    gpu = SimulatedGpu(UNHEALTHY, WELL, reset=Reset(True, "reset by amd-smi"))
    steps = recovered(gpu)
    assert shown(steps) == [("memory", True), ("probe", False), ("reset", True), ("probe", True)]
    assert [step.seconds for step in steps] == [0, 7, 3, 7]


def test_a_gpu_that_fails_again_stays_unhealthy() -> None:
    steps = recovered(SimulatedGpu(UNHEALTHY, UNHEALTHY, reset=Reset(True, "reset by amd-smi")))
    assert shown(steps)[-1] == ("probe", False)


def test_without_a_reset_there_is_no_second_probe() -> None:
    gpu = SimulatedGpu(UNHEALTHY)
    assert shown(recovered(gpu)) == [("memory", True), ("probe", False), ("reset", None)]
    assert gpu.done == ["probe", "reset"]


def test_a_probe_that_says_nothing_leads_to_nothing() -> None:
    gpu = SimulatedGpu(SILENT)
    assert shown(recovered(gpu)) == [("memory", True), ("probe", None)]
    assert gpu.done == ["probe"]


def test_where_the_environment_never_passed_the_gpu_is_not_to_blame() -> None:
    gpu = SimulatedGpu(UNHEALTHY)
    steps = recovered(gpu, proven=False)
    assert shown(steps) == [("memory", True), ("probe", None)]
    assert "matmul-fp32 hung" in steps[-1].detail
    assert "the fault may be its own" in steps[-1].detail
    assert gpu.done == ["probe"]


def test_a_probe_that_cannot_be_killed_is_reported() -> None:
    assert not recovered(SimulatedGpu(Probed(False, "did not end", killable=False)))[1].killable


@pytest.mark.parametrize("good", [False, None])
def test_a_probe_that_cannot_be_killed_is_no_fault_of_the_environment(good: bool | None) -> None:
    step = recovered(SimulatedGpu(Probed(good, "did not end", killable=False)), proven=False)[1]
    assert (step.good, step.detail) == (False, "did not end; it cannot be killed")


def test_a_reset_of_a_gpu_that_fell_off_the_bus_is_seen(tree: TwoGpuHost) -> None:
    known = tuple(read_gpus(tree.root))
    unknown = (a_gpu(0), a_gpu(1))
    tree.kernel_says(f"amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!. Source:  3")
    (tree.root / "sys/class/drm/renderD129").unlink()
    for gpus, good in ((known, False), (unknown, False), (known[:1], True), (unknown[1:], False)):
        assert look_for_resets(gpus, time.time(), tree.root, time.time()).good is good


def test_a_host_that_was_shut_down_for_a_hot_gpu_counts_against_its_run(tree: TwoGpuHost) -> None:
    tree.kernel_says(
        f"amdgpu {ADDRESSES[1]}: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
        f"amdgpu {ADDRESSES[1]}: amdgpu: ERROR: System is going to shutdown due to GPU SW CTF!",
    )
    mine, others = (look_for_resets([gpu], time.time(), tree.root, time.time()) for gpu in (a_gpu(1), a_gpu(0)))
    assert (mine.good, others.good) == (False, True)
    assert "ERROR: GPU over temperature range(SW CTF) detected! (and 1 more)" in mine.detail
