import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.environments.environment import Environment
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import HealthStep
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import LOCK_HELD_DETAIL, append_steps, read_steps, unhealthy_gpus
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.gpus.gpu_reset import Reset
from harness.matrix.cells import Matrix
from harness.run import gpu_health
from harness.run.gpu_health import (
    Checkup,
    after_completion,
    after_failure,
    after_interruption,
    after_unkillable,
    recheck,
)
from harness.run.gpu_probe import Probed
from harness.run.gpu_readiness import SERVES_SECONDS, before_run
from harness.run.gpu_recovery import Actions
from harness.run.requested_run import Run
from harness.run.spec import resolve_run
from tests.harness.gpu_tree import ADDRESSES, TwoGpuHost

WELL, UNHEALTHY = Probed(True, "5 checks passed"), Probed(False, "device hung: no end within 90 s")
CALM = "usb 1-2: new high-speed USB device number 3 using xhci_hcd"


@pytest.fixture
def run(matrix: Matrix, dual_host: HostFacts) -> Run:
    """Return a run on both GPUs."""
    environment = Environment(Path("/no/python"), {"lock": "l"}, {}, "cuda")
    cell, data = matrix.cells["rocm6.3-torch2.9.1-plain"], InputFile(path="/bars.csv", sha256="a" * 64)
    return Run("r1", cell, matrix.workloads["quick"], data, environment, dual_host, gpus=(0, 1))


@pytest.fixture
def checkup(tmp_path: Path, tree: TwoGpuHost, run: Run) -> Checkup:
    """Return the checkup of that run, on a host whose kernel log can be read."""
    tree.kernel_says(CALM)
    results = Results(tmp_path / "results")
    folder = results.run_folder("r1")
    folder.mkdir(parents=True)
    return Checkup(resolve_run(run, RunFolder(folder)), results, ProcessExecutor(), tree.root)


def unhealthy(checkup: Checkup) -> dict[int, str]:
    return unhealthy_gpus(checkup.results, checkup.spec.intent.host)


def probe_before_run(checkup: Checkup, monkeypatch: pytest.MonkeyPatch, *probed: Probed) -> None:
    """Run the checks before a run; the probes of GPU 0 and GPU 1 return `probed`."""
    answers = iter(probed)
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: next(answers))
    before_run(checkup)


def with_actions(checkup: Checkup, simulated: Actions) -> Checkup:
    class Acting(Checkup):
        actions = simulated

    return Acting(checkup.spec, checkup.results, checkup.executor, checkup.root)


def with_probes(checkup: Checkup, *probed: Probed, reset: Reset | None = None) -> Checkup:
    """Return the checkup with probes that return `probed`, and resets that return `reset`: by default, refused."""
    answers = iter(probed)
    refused = Reset(False, "not reset: a screen is attached to it (DP-1)")
    return with_actions(checkup, Actions(lambda _: 1, lambda _: next(answers), lambda _: reset or refused))


def shown(checkup: Checkup) -> list[tuple[str, str, int | None, bool | None]]:
    """Return the steps in the health log, without those that mark the start of a run."""
    steps = (step for step in read_steps(checkup.results) if (step.when, step.check) != ("before-run", "memory"))
    return [(step.when, step.check, step.gpu, step.good) for step in steps]


def test_each_gpu_is_probed_before_each_run(
    checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.use_memory(1, 5 << 20)
    answers = iter([WELL, UNHEALTHY, WELL, WELL])
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: next(answers))
    memory, unfit, _ = before_run(checkup)
    assert memory == {0: 100 << 20, 1: 5 << 20}
    # The failure may be the environment's fault or the host's, so the GPU does not count as unhealthy.
    assert unfit is not None
    assert unfit.startswith("not begun, as no stack's probe has passed on it since the boot: GPU 1: device hung")
    assert shown(checkup) == [("before-run", "probe", 0, True), ("before-run", "probe", 1, None)]
    assert unhealthy_gpus(checkup.results, checkup.spec.intent.host) == {}
    # The probe of GPU 0 still serves, because the run that it was made for did not begin.
    assert before_run(checkup) == ({0: 100 << 20, 1: 5 << 20}, None, None)
    assert [step[2:] for step in shown(checkup)] == [(0, True), (1, None), (1, True)]


def test_a_probe_serves_no_run_but_the_next(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    after_completion(with_probes(checkup, WELL, WELL), time.time())
    assert before_run(with_probes(checkup)).why_unfit is None
    # That run began and has no end in the log, as if its harness was killed, so the GPUs are probed again.
    assert (before_run(with_probes(checkup, UNHEALTHY, WELL)).why_unfit or "").startswith(
        "not begun, on an unhealthy GPU: GPU 0"
    )


def test_a_stack_that_never_worked_begins_only_where_nothing_ran_since_a_probe_that_passed(
    checkup: Checkup, make_step: Callable[..., HealthStep]
) -> None:
    append_steps(checkup.results, [make_step(environment="another"), make_step(environment="another", gpu=1)])
    began = make_step(environment="another", when="before-run", check="memory", good=None)
    append_steps(checkup.results, [began])
    unfit = before_run(with_probes(checkup, UNHEALTHY, WELL)).why_unfit or ""
    assert unfit.startswith("not begun, as its stack's probe never passed on it and fails, and no probe followed")
    append_steps(checkup.results, [make_step(environment="another")])
    assert before_run(with_probes(checkup, UNHEALTHY, WELL)).why_unfit is None


def test_until_a_probe_has_passed_on_a_gpu_a_run_whose_probe_fails_is_not_begun(
    checkup: Checkup, make_step: Callable[..., HealthStep]
) -> None:
    no_answer = Probed(None, "the probe could not be started: no such file or directory")
    for failed in (UNHEALTHY, no_answer):
        assert (before_run(with_probes(checkup, failed, WELL)).why_unfit or "").startswith(
            "not begun, as no stack's probe"
        )
    # A probe that fails before it uses the GPU shows a fault of the stack.
    lost = Probed(None, "import failed: no module named torch", of_environment=True)
    assert before_run(with_probes(checkup, lost, lost)).why_unfit is None
    # A probe that passed since another boot does not count.
    append_steps(checkup.results, [make_step(environment="another", boot_id="an earlier one")])
    assert before_run(with_probes(checkup, UNHEALTHY, WELL)).why_unfit is not None
    append_steps(checkup.results, [make_step(environment="another")])
    ready = before_run(with_probes(checkup, UNHEALTHY, WELL))
    assert ready.why_unfit is None
    assert (ready.no_kernels or "").startswith(
        "no kernels for this card: its probe fails where another stack's passed since the boot: GPU 0: device hung"
    )
    assert unhealthy_gpus(checkup.results, checkup.spec.intent.host) == {}
    # A probe that gave no answer does not show that the stack lacks kernels for this GPU.
    assert before_run(with_probes(checkup, no_answer, WELL))[1:] == (None, None)


@pytest.mark.parametrize("seconds", [SERVES_SECONDS, -60])
def test_a_run_may_rely_on_the_probe_after_the_one_before_for_ten_minutes(
    seconds: float, checkup: Checkup, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    after_completion(with_probes(checkup, WELL, WELL), time.time())
    count = len(shown(checkup))
    assert before_run(with_probes(checkup)) == ({0: 1, 1: 1}, None, None)
    assert len(shown(checkup)) == count
    after_completion(with_probes(checkup, WELL, WELL), time.time())
    count = len(shown(checkup))
    # A clock that was set back does not tell how long ago it was.
    later = time.time() + seconds
    monkeypatch.setattr("time.time", lambda: later)
    before_run(with_probes(checkup, WELL, WELL))
    assert [step[:2] for step in shown(checkup)[count:]] == [("before-run", "probe")] * 2


def test_nothing_begins_on_a_gpu_that_fails_unless_it_is_reset(
    checkup: Checkup, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    unfit = f"not begun, on an unhealthy GPU: GPU 1: {UNHEALTHY.detail}"
    assert before_run(with_probes(checkup, WELL, UNHEALTHY))[1] == unfit
    reset = with_probes(checkup, UNHEALTHY, WELL, reset=Reset(True, "reset by amd-smi"))
    assert before_run(reset)[1] is None
    assert shown(checkup)[-3:] == [
        ("before-run", "probe", 1, False),
        ("before-run", "reset", 1, True),
        ("before-run", "probe", 1, True),
    ]


def test_a_run_on_the_cpu_is_left_alone(checkup: Checkup, run: Run) -> None:
    environment = Environment(Path("/no/python"), {}, {}, "cpu")
    run = Run("r1", run.cell, run.workload, run.data, environment, run.host, gpus=(0,))
    on_cpu = Checkup(resolve_run(run, checkup.spec.folder), checkup.results, checkup.executor, checkup.root)
    assert before_run(on_cpu) == ({}, None, None)
    assert after_completion(on_cpu, time.time()) == ()
    assert after_interruption(on_cpu, {}, time.time()) == ()
    assert after_failure(on_cpu, {}, time.time()) == ()
    assert not (checkup.spec.folder.path / "failure").exists()
    assert shown(on_cpu) == []


def test_well_gpus_are_no_problem(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    problems = after_failure(with_probes(checkup, WELL, WELL), {0: 1, 1: 1}, time.time())
    assert (problems, unhealthy(checkup)) == ((), {})
    assert shown(checkup)[2:] == [
        ("after-failure", "memory", 0, True),
        ("after-failure", "memory", 1, True),
        ("after-failure", "kernel-log", None, True),
        ("after-failure", "probe", 0, True),
        ("after-failure", "probe", 1, True),
    ]


def test_a_gpu_that_fails_is_a_problem_and_unhealthy(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    problems = after_failure(with_probes(checkup, WELL, UNHEALTHY), {0: 1, 1: 1}, time.time())
    assert problems == ("GPU 1 failed its probe: device hung: no end within 90 s",)
    assert unhealthy(checkup) == {1: UNHEALTHY.detail}
    health = json.loads((checkup.spec.folder.path / "failure/health.json").read_text())
    assert health["schema"] == 2
    assert health["problems"] == list(problems)
    assert health["unhealthy"] == {"1": UNHEALTHY.detail}
    assert [(step["check"], step["gpu"], step["good"]) for step in health["steps"]][-2:] == [
        ("probe", 1, False),
        ("reset", 1, None),
    ]
    assert all(step["seconds"] >= 0 for step in health["steps"])


def test_a_gpu_that_is_well_after_a_reset_was_a_problem_but_is_not_unhealthy(
    checkup: Checkup, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    reset = with_probes(checkup, UNHEALTHY, WELL, WELL, reset=Reset(True, "reset by amd-smi"))
    problems = after_failure(reset, {0: 1, 1: 1}, time.time())
    assert problems == ("GPU 0 failed its probe: device hung: no end within 90 s",)
    assert unhealthy(checkup) == {}


def test_an_environment_that_never_worked_convicts_no_gpu(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, UNHEALTHY, UNHEALTHY)
    problems = after_failure(with_probes(checkup, UNHEALTHY, UNHEALTHY), {0: 1, 1: 1}, time.time())
    assert (problems, unhealthy(checkup)) == ((), {})


@pytest.mark.parametrize(("address", "concerns"), [(ADDRESSES[1], True), ("0000:63:00.0", False)])
def test_a_reset_in_the_kernel_log_is_a_problem_where_it_is_of_these_gpus(
    address: str, concerns: bool, checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    prefix = f"amdgpu {address}: amdgpu: "
    tree.kernel_says(CALM, f"{prefix}GPU reset begin!", f"{prefix}ring gfx_0.0.0 timeout")
    problems = after_failure(with_probes(checkup, WELL, WELL), {}, time.time())
    assert bool(problems) is concerns
    if concerns:
        (problem,) = problems
        assert problem.startswith("the kernel log shows that a GPU did not answer: ")
        assert "GPU reset begin! (and 1 more)" in problem
        # The GPU may be used again, because its probe passed.
        assert unhealthy(checkup) == {}


@pytest.mark.parametrize("after", [after_failure, after_interruption])
def test_a_reset_that_the_kernel_logs_while_memory_is_waited_for_is_the_runs(
    after: Callable[..., tuple[str, ...]], checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    prefix = f"amdgpu {ADDRESSES[0]}: amdgpu: "

    def memory(_: object) -> int:
        tree.kernel_says(CALM, f"{prefix}MES failed to respond to msg=REMOVE_QUEUE")
        return 1

    def probed(_: object) -> Probed:
        # The kernel logs this during the probe of recovery, so the run did not cause it.
        tree.kernel_says(CALM, f"{prefix}MES failed to respond to msg=REMOVE_QUEUE", f"{prefix}GPU reset begin!")
        return WELL

    actions = Actions(memory, probed, lambda _: Reset(False, ""))
    (problem,) = after(with_actions(checkup, actions), {0: 1, 1: 1}, time.time())
    assert problem.endswith("msg=REMOVE_QUEUE")


def test_a_kernel_log_that_cannot_be_read_is_reported_and_no_problem(
    checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    (tree.root / "dev/kmsg").unlink()
    assert after_failure(with_probes(checkup, WELL, WELL), {}, time.time()) == ()
    step = next(step for step in read_steps(checkup.results) if step.check == "kernel-log")
    assert step.good is None
    assert "group adm" in step.detail


def test_a_probe_that_cannot_be_killed_is_a_problem(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    stuck = Probed(False, "the probe did not end in 540 s", killable=False)
    problems = after_failure(with_probes(checkup, WELL, stuck), {}, time.time())
    assert problems == (
        "a probe of GPU 1 cannot be killed",
        "GPU 1 failed its probe: the probe did not end in 540 s; it cannot be killed",
    )
    # The probe may hold the locks of all GPUs of the run.
    assert unhealthy_gpus(checkup.results, checkup.spec.intent.host).keys() == {0, 1}


def test_a_probe_before_a_run_that_cannot_be_killed_forbids_the_run(
    checkup: Checkup, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([WELL, Probed(False, "the probe did not end in 540 s", killable=False)])
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: next(answers))
    unfit = before_run(checkup)[1]
    assert unfit is not None
    assert unfit.endswith("GPU 1: the probe did not end in 540 s; it cannot be killed")
    # The probe may hold the locks of all GPUs of the run for ever.
    assert unhealthy_gpus(checkup.results, checkup.spec.intent.host) == {
        0: LOCK_HELD_DETAIL,
        1: "the probe did not end in 540 s; it cannot be killed",
    }


def test_the_gpus_of_a_run_that_cannot_be_killed_are_unhealthy_and_not_touched(
    checkup: Checkup, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    after_unkillable(checkup)
    problems = after_failure(with_probes(checkup), {0: 1, 1: 1}, time.time(), unkillable=True)
    assert problems == ()
    assert unhealthy(checkup) == dict.fromkeys((0, 1), "a process of a run on it cannot be killed")
    assert shown(checkup)[2:] == [
        ("after-failure", "probe", 0, False),
        ("after-failure", "probe", 1, False),
        ("after-failure", "kernel-log", None, True),
    ]


def test_after_an_interruption_only_the_memory_is_waited_for(checkup: Checkup) -> None:
    problems = after_interruption(with_probes(checkup), {0: 1, 1: 1}, time.time())
    assert (problems, unhealthy(checkup)) == ((), {})
    assert shown(checkup) == [
        ("after-failure", "memory", 0, True),
        ("after-failure", "memory", 1, True),
        ("after-failure", "kernel-log", None, True),
    ]


def test_what_was_seen_is_written_down_before_the_next_step(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)

    def interrupted(_: object) -> Probed:
        raise KeyboardInterrupt

    actions = Actions(lambda _: 1, interrupted, lambda _: Reset(False, ""))
    with pytest.raises(KeyboardInterrupt):
        after_failure(with_actions(checkup, actions), {0: 1}, time.time())
    assert shown(checkup)[2:] == [
        ("after-failure", "memory", 0, True),
        ("after-failure", "memory", 1, None),
        ("after-failure", "kernel-log", None, True),
    ]


def test_a_gpu_is_probed_after_a_run_that_completed_too(checkup: Checkup, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    problems = after_completion(with_probes(checkup, WELL, UNHEALTHY), time.time())
    assert (problems, unhealthy(checkup)) == (
        (f"GPU 1 failed its probe: {UNHEALTHY.detail}",),
        {1: UNHEALTHY.detail},
    )
    assert shown(checkup)[2:] == [
        ("after-completion", "kernel-log", None, True),
        ("after-completion", "probe", 0, True),
        ("after-completion", "probe", 1, False),
        ("after-completion", "reset", 1, None),
    ]


def test_what_completed_may_have_avoided_by_its_preset_what_the_probe_fails_at(checkup: Checkup) -> None:
    problems = after_completion(with_probes(checkup, UNHEALTHY, UNHEALTHY), time.time())
    assert (problems, unhealthy(checkup)) == ((), {})


def test_the_kernel_log_is_read_after_a_run_that_completed_too(
    checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    tree.kernel_says(CALM, f"amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!")
    (problem,) = after_completion(with_probes(checkup, WELL, WELL), time.time())
    assert "GPU reset begin!" in problem


@pytest.mark.parametrize("set_by", [2e9, -1e9])
def test_the_kernel_log_is_read_from_the_start_of_a_run_though_the_clock_was_set(
    set_by: float, checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    intent = checkup.spec.intent.model_copy(update={"started": checkup.spec.intent.started - set_by})
    checkup = replace(checkup, spec=replace(checkup.spec, intent=intent))
    for ago, problems in ((100, 0), (50, 1)):
        at = int((time.monotonic() - ago) * 1e6)
        (tree.root / "dev/kmsg").write_text(f"3,1,{at},-;amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!\n")
        assert len(after_completion(with_probes(checkup, WELL, WELL), checkup.spec.now_awake - 75)) == problems


def test_what_the_kernel_said_before_a_run_is_not_its_own_though_the_host_slept_during_it(
    checkup: Checkup, tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's log has no time for which the host slept."""
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    before, finished = checkup.spec.now_awake, checkup.spec.now
    at = int((time.monotonic() - 100) * 1e6)
    (tree.root / "dev/kmsg").write_text(f"3,1,{at},-;amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!\n")
    awake = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr("harness.run.spec._since_boot", lambda: awake + 7200)
    assert checkup.spec.now - finished > 7000
    assert after_completion(with_probes(checkup, WELL, WELL), before) == ()


def test_after_a_run_that_completed_on_healthy_gpus_nothing_is_left(
    checkup: Checkup, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    assert after_completion(with_probes(checkup, WELL, WELL), time.time()) == ()
    assert not checkup.spec.folder.failure.exists()


def test_an_unhealthy_gpu_that_passes_again_is_used_again(
    checkup: Checkup, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_before_run(checkup, monkeypatch, WELL, WELL)
    after_failure(with_probes(checkup, WELL, UNHEALTHY), {0: 1, 1: 1}, time.time())
    place = (run, checkup.results, checkup.executor, checkup.root)
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: UNHEALTHY)
    assert recheck(*place) == {1: UNHEALTHY.detail}
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: WELL)
    assert recheck(*place) == {}
    # Only the unhealthy GPU was probed.
    assert [step[1:] for step in shown(checkup) if step[0] == "recheck"] == [("probe", 1, False), ("probe", 1, True)]


def test_a_recheck_that_cannot_be_killed_is_not_followed_by_another(
    checkup: Checkup, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_unkillable(checkup)
    answers = iter([Probed(None, "the probe was lost", killable=False)])
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: next(answers))
    assert recheck(run, checkup.results, checkup.executor, checkup.root).keys() == {0, 1}
