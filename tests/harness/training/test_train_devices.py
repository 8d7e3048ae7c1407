"""Tests of which GPUs the attempts of a training use, and when the CPU or another stack takes over."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.evidence.files.run_files import HealthStep
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.run.gpu_recovery import Step
from harness.run.requested_run import Run
from harness.run.spec import resolve_run
from harness.training.state import new_state
from tests.harness.training.scripted_attempts import DONE, GPU_CELL, MakeTraining, Probes, Script, resumed_at


def test_two_gpus_then_one_then_the_cpu(make_training: MakeTraining, dual_host: HostFacts) -> None:
    training = make_training(dual_host, GPU_CELL, strategy="ddp")
    training.job = replace(training.job, allow_cpu=True)
    training.train(
        Script(class_="hang-collective", step=10),
        Script(class_="hang-collective"),
        Script(class_="hang-collective"),
        Script("host-fault", "unhealthy-gpu", unhealthy=(0,)),
        Script("host-fault", "unhealthy-gpu", unhealthy=(1,)),
        DONE,
    )
    assert [(run.cell.id, run.gpus, run.workload.strategy) for run in training.bench.made] == [
        (GPU_CELL, (0, 1), "ddp"),
        (f"{GPU_CELL}~no-p2p", (0, 1), "ddp"),
        (f"{GPU_CELL}~no-p2p", (0,), "single"),
        (f"{GPU_CELL}~no-p2p", (0,), "single"),
        (f"{GPU_CELL}~no-p2p", (1,), "single"),
        ("cpu-plain", (), "single"),
    ]
    assert [resumed_at(run) for run in training.bench.made] == [0, *[10] * 5]
    no_p2p = resolve_run(training.bench.made[1], RunFolder(training.job.output)).intent.variables["train"]
    assert no_p2p["NCCL_P2P_DISABLE"] == "1"
    # On one device, micro-batches of 32 add up to the gradients of the same batch.
    assert [run.workload.micro_batch_size for run in training.bench.made] == [None, None, *[32] * 4]
    assert {run.workload.batch_size for run in training.bench.made} == {64}


def test_a_gpu_that_fails_what_another_passes_is_used_only_where_no_other_is_left(
    make_training: MakeTraining, dual_host: HostFacts
) -> None:
    training = make_training(dual_host, GPU_CELL)
    training.job = replace(training.job, avoided=(0,))
    training.train(Script("host-fault", "unhealthy-gpu", unhealthy=(1,)), DONE)
    assert [run.gpus for run in training.bench.made] == [(1,), (0,)]


def test_a_gpu_that_was_reset_more_often_is_used_only_where_no_other_is_left(
    make_training: MakeTraining, dual_host: HostFacts
) -> None:
    """It may pass each probe in between, so that nothing else takes it out of a training."""
    addresses = ("0000:03:00.0", "0000:43:00.0")
    gpus = [gpu.model_copy(update={"address": one}) for gpu, one in zip(dual_host.gpus, addresses, strict=True)]
    training = make_training(dual_host.model_copy(update={"gpus": tuple(gpus)}), GPU_CELL)
    bench = training.bench
    reset = Step("kernel-log", None, good=False, detail=f"amdgpu {addresses[0]}: GPU reset begin!", seconds=0.0)
    training.train(Script(class_="gpu-reset"), DONE)
    assert [run.gpus for run in bench.made] == [(0,), (0,)]
    intent = resolve_run(bench.made[0], RunFolder(training.job.output)).intent
    append_steps(bench.results, [reset.line("after-failure", intent, "e" * 64)])
    again = make_training(dual_host.model_copy(update={"gpus": tuple(gpus)}), GPU_CELL)
    append_steps(again.bench.results, [reset.line("after-failure", intent, "e" * 64)])
    again.train(Script(class_="gpu-reset"), DONE)
    assert {run.gpus for run in again.bench.made} == {(1,)}


def test_the_cpu_takes_over_where_that_is_allowed_and_no_longer_than_that(
    make_training: MakeTraining, dual_host: HostFacts
) -> None:
    training = make_training(dual_host.model_copy(update={"gpus": dual_host.gpus[:1]}), GPU_CELL)
    ended = training.train(Script(class_="missing-arch", step=10), *[Script(class_="missing-arch")] * 7)
    assert ended.model is None
    assert ended.exhausted
    assert "--allow-cpu" in ended.exhausted
    assert {run.cell.stack.accelerator for run in training.bench.made} == {"rocm"}
    job = training.job
    training.job = replace(job, allow_cpu=True)
    with pytest.raises(KeyboardInterrupt):
        training.train(Script(step=30, interrupt=True))
    assert (training.bench.made[-1].cell.stack.name, training.lines[-1]["begin"]) == ("cpu", "cpu")
    training.job = job
    assert training.train(DONE).model
    assert (training.bench.made[-1].cell.id, training.lines[-1]["begin"]) == (GPU_CELL, "by-hand")
    assert resumed_at(training.bench.made[-1]) == 30


def test_another_stack_resumes_what_the_first_one_cannot_train(
    make_training: MakeTraining, dual_host: HostFacts, matrix: Matrix
) -> None:
    training = make_training(dual_host, GPU_CELL)
    other = matrix.cells["rocm6.2-torch2.5.1-plain"]
    training.job = replace(training.job, others=(other,))
    assert training.train(Script(step=10), *[Script()] * 7, DONE).model
    assert [run.cell.stack.name for run in training.bench.made] == [*["rocm6.3-torch2.9.1"] * 8, other.stack.name]
    assert (training.lines[-1]["begin"], resumed_at(training.bench.made[-1])) == ("other-stack", 10)
    # The other stack begins with the settings that were asked for.
    assert training.bench.made[-1].cell == other


def test_without_a_healthy_gpu_it_begins_on_the_cpu_where_that_is_allowed(
    make_training: MakeTraining, dual_host: HostFacts, make_step: Callable[..., HealthStep]
) -> None:
    training = make_training(dual_host, GPU_CELL)
    append_steps(training.bench.results, [make_step(gpu=gpu, good=False, detail="gone") for gpu in (0, 1)])
    with pytest.raises(UserError, match="--allow-cpu"):
        training.train()
    training.file.remove(training.state)
    training.state = new_state("key", GPU_CELL, None)
    training.job = replace(training.job, allow_cpu=True)
    assert training.train(DONE).model
    assert [(run.cell.id, run.gpus) for run in training.bench.made] == [("cpu-plain", ())]


def test_a_gpu_that_was_unhealthy_before_is_not_trained_on(make_training: MakeTraining, dual_host: HostFacts) -> None:
    training = make_training(dual_host, GPU_CELL)
    with pytest.raises(IndexError):
        training.train(Script("host-fault", "unhealthy-gpu", unhealthy=(0,)))
    assert training.bench.made[0].gpus == (0,)
    training.file.remove(training.state)
    training.state = new_state("key", GPU_CELL, None)
    training.train(DONE)
    assert training.bench.made[-1].gpus == (1,)
    alone = make_training(dual_host.model_copy(update={"gpus": dual_host.gpus[:1]}), GPU_CELL)
    with pytest.raises(UserError, match=r"too few GPUs are healthy \(GPU 0: gone\)"):
        alone.train(DONE)


def test_unhealthy_gpus_are_probed_again_each_time_a_training_is_called_for(
    make_training: MakeTraining,
    dual_host: HostFacts,
    make_step: Callable[..., HealthStep],
    probed_again: Probes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = make_training(dual_host, GPU_CELL)
    append_steps(training.bench.results, [make_step(gpu=gpu, good=False, detail="gone") for gpu in (0, 1)])
    with pytest.raises(UserError, match=r"^too few GPUs are healthy \(GPU 0: gone; GPU 1: gone\)"):
        training.train()
    assert probed_again == [(0,), (1,)]

    def reset(run: Run, results: Results, *_: object) -> None:
        append_steps(results, [make_step(gpu=gpu, when="recheck") for gpu in run.gpus if gpu == 1])

    monkeypatch.setattr("harness.campaign.gpus.unhealthy.recheck", reset)
    assert training.train(DONE).model
    assert [run.gpus for run in training.bench.made] == [(1,)]


def test_on_a_cpu_no_gpu_is_probed(
    make_training: MakeTraining, dual_host: HostFacts, make_step: Callable[..., HealthStep], probed_again: Probes
) -> None:
    training = make_training(dual_host)
    append_steps(training.bench.results, [make_step(good=False)])
    assert training.train(DONE).model
    assert probed_again == []


def test_after_all_fallbacks_the_same_command_trains_on_with_the_gpus_that_are_left(
    make_training: MakeTraining, dual_host: HostFacts
) -> None:
    training = make_training(dual_host, GPU_CELL, strategy="ddp")
    ended = training.train(Script(step=20), Script(step=20, unhealthy=(1,)), *[Script() for _ in range(30)])
    assert ended.exhausted
    assert training.bench.made[-1].gpus == (0,)
    assert training.train(DONE).model
    assert (training.bench.made[-1].gpus, resumed_at(training.bench.made[-1])) == ((0,), 20)
