"""Checks the GPUs of a run after the run, and unhealthy GPUs again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.base.paths import DATA
from harness.environments.executors.job import Executor
from harness.evidence.files.run_files import HealthOccasion
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.temporary_folder import folder_removed_after
from harness.evidence.gpus.health_log import append_steps, proven_gpus, unhealthy_gpus
from harness.evidence.records import Results
from harness.host.facts import GpuFacts
from harness.host.gpus.amdgpu import memory_in_use
from harness.host.gpus.gpu_reset import reset_gpu
from harness.run.gpu_probe import probe_gpu
from harness.run.gpu_recovery import Actions, Step, look_for_resets, probe, probe_or_reset, recover_gpu, wait_for_memory
from harness.run.requested_run import Run
from harness.run.spec import RunSpec, resolve_run

UNKILLABLE = "a process of a run on it cannot be killed"
# Longest wait for the memory of each GPU after Ctrl-C, in seconds: the next run probes the GPU anyway.
INTERRUPTED_SECONDS = 2.0

# Bytes in use on each GPU before a run, by index; None where the driver does not report them.
MemoryBefore = Mapping[int, int | None]


@dataclass(frozen=True)
class Checkup:
    """The GPUs of one run, and where the steps of their checks are logged. `root`: may be a fake tree."""

    spec: RunSpec
    results: Results
    executor: Executor
    root: Path = Path("/")

    @property
    def actions(self) -> Actions:
        """The actions of recovery on the GPUs of this host."""
        return Actions(
            memory_in_use=partial(memory_in_use, root=self.root),
            probe=lambda gpu: probe_gpu(self.spec, gpu, self.executor),
            reset=partial(reset_gpu, root=self.root),
        )

    def proven(self, gpu: GpuFacts) -> bool:
        """Return whether the run's environment passed a probe on a GPU since the boot."""
        return gpu.index in proven_gpus(self.results, self.spec.intent.host, self.spec.environment_hash)

    def known(self, gpu: GpuFacts) -> bool:
        """Return whether any environment passed a probe on a GPU since the boot."""
        return gpu.index in proven_gpus(self.results, self.spec.intent.host)

    def note(self, step: Step, when: HealthOccasion) -> Step:
        """Log a step at once, because the next one may never return."""
        append_steps(self.results, [step.line(when, self.spec.intent, self.spec.environment_hash)])
        return step

    def note_resets(self, since: float, when: HealthOccasion) -> Step:
        """Log what the kernel log says of the GPUs from `since`, as in `RunSpec.now_awake`, on."""
        return self.note(look_for_resets(self.spec.gpus, since, self.root, self.spec.now_awake), when)


def after_failure(checkup: Checkup, before: MemoryBefore, since: float, *, unkillable: bool = False) -> tuple[str, ...]:
    """Check the GPUs of a run that did not complete, and write down what was seen; return what makes it a host fault.

    `since`: when the run began, as in `RunSpec.now_awake`; the kernel log is read from there.
    `unkillable`: whether a process of the run cannot be killed. Its GPUs cannot be checked then, and only the kernel
        log is read.

    Raises:
        UserError: when the results folder cannot be written.
    """
    if not checkup.spec.gpus:
        return ()
    recoveries = [
        recover_gpu(gpu, before.get(gpu.index), checkup.actions, proven=checkup.proven(gpu))
        for gpu in (() if unkillable else checkup.spec.gpus)
    ]
    # The kernel notices only some time after the kill that a queue is not given back, so the first step of each
    # recovery waits for the GPU's memory. The log is read before the next steps: their probes and resets are not the
    # run's.
    steps = [checkup.note(next(recovery), "after-failure") for recovery in recoveries]
    steps.append(checkup.note_resets(since, "after-failure"))
    for recovery in recoveries:
        steps += [checkup.note(step, "after-failure") for step in recovery]
    if any(_unkillable(steps)):
        after_unkillable(checkup)
    return _report(checkup, steps)


def after_unkillable(checkup: Checkup) -> None:
    """Log that the GPUs of a run can no longer be used, because a process of it, or of its probe, cannot be killed.

    The process may hold the locks of all its GPUs for ever: a harness that wanted to probe them would never get them.

    Raises:
        UserError: when the results folder cannot be written.
    """
    for gpu in checkup.spec.gpus:
        checkup.note(Step("probe", gpu.index, False, UNKILLABLE, 0.0), "after-failure")


def after_interruption(checkup: Checkup, before: MemoryBefore, since: float) -> tuple[str, ...]:
    """Wait until the GPUs of a run that somebody ended have their memory back, and read the kernel log.

    Nothing more is checked: a user who interrupts does not want to wait, and the next run probes the GPUs. `since`: as
    in `after_failure`.

    Raises:
        UserError: when the results folder cannot be written.
    """
    if not checkup.spec.gpus:
        return ()
    steps = []
    for gpu in checkup.spec.gpus:
        waited = wait_for_memory(gpu, before.get(gpu.index), checkup.actions, INTERRUPTED_SECONDS)
        steps.append(checkup.note(waited, "after-failure"))
    steps.append(checkup.note_resets(since, "after-failure"))
    return _report(checkup, steps)


def after_completion(checkup: Checkup, since: float) -> tuple[str, ...]:
    """Check the GPUs of a run that completed: it may have left one unhealthy for the next.

    `since`: as in `after_failure`.

    Raises:
        UserError: when the results folder cannot be written.
    """
    if not checkup.spec.gpus:
        return ()
    steps = [checkup.note_resets(since, "after-completion")]
    for gpu in checkup.spec.gpus:
        # The run's preset may avoid what fails in the probe, which has no preset.
        steps_of_gpu = probe_or_reset(gpu, checkup.actions, proven=checkup.proven(gpu))
        steps += [checkup.note(step, "after-completion") for step in steps_of_gpu]
    if any(_unkillable(steps)):
        after_unkillable(checkup)
    return _report(checkup, steps) if any(step.good is False for step in steps) else ()


def recheck(run: Run, results: Results, executor: Executor, root: Path = Path("/")) -> dict[int, str]:
    """Probe the unhealthy GPUs of a planned run again, in case one was reset; return those still unhealthy, and why.

    Raises:
        UserError: when the results folder cannot be written.
    """
    # In the folder of data recovery removes what a killed harness left.
    with folder_removed_after(DATA, ".probe-") as place:
        checkup = Checkup(resolve_run(run, RunFolder(place)), results, executor, root)
        for gpu in checkup.spec.gpus:
            if gpu.index in unhealthy_gpus(results, run.host):
                checkup.spec.folder.make_places()
                try:
                    step = checkup.note(probe(gpu, checkup.actions, proven=checkup.proven(gpu)), "recheck")
                finally:
                    checkup.spec.folder.remove_places(all_of_it=False)
                if not step.killable:
                    after_unkillable(checkup)
                    break
    return unhealthy_gpus(results, run.host)


def _problems(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the problems that make the run a host fault.

    Memory that is not given back is not a problem, because the probe shows whether the GPU works.
    """
    failed = set()
    for step in steps:
        yield from _unkillable([step])
        if step.check == "probe" and step.good is False and step.gpu not in failed:
            failed.add(step.gpu)
            yield f"GPU {step.gpu} failed its probe: {step.detail}"
        if step.check == "kernel-log" and step.good is False:
            yield f"the kernel log shows that a GPU did not answer: {step.detail}"


def _unkillable(steps: Iterable[Step]) -> Iterator[str]:
    return (f"a probe of GPU {step.gpu} cannot be killed" for step in steps if not step.killable)


def _report(checkup: Checkup, steps: Sequence[Step]) -> tuple[str, ...]:
    problems = tuple(_problems(steps))
    unhealthy = unhealthy_gpus(checkup.results, checkup.spec.intent.host)
    told = [
        {"check": s.check, "gpu": s.gpu, "good": s.good, "detail": s.detail, "seconds": round(s.seconds, 3)}
        for s in steps
    ]
    if steps:
        content = {"schema": 2, "problems": problems, "unhealthy": unhealthy, "steps": told}
        checkup.spec.folder.write(RunFolder.HEALTH, content)
    return problems
