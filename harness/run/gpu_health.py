"""Checks the GPUs of a run: before it, and after it when it did not complete."""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.base.paths import DATA
from harness.environments.executors.job import Executor
from harness.evidence.health_log import append_steps, proven_gpus, read_steps, unhealthy_gpus
from harness.evidence.records import Results
from harness.evidence.run_files import HealthOccasion, HealthStep
from harness.evidence.run_folder import RunFolder
from harness.host.amdgpu import memory_in_use, pci_address
from harness.host.facts import GpuFacts
from harness.host.gpu_reset import reset_gpu
from harness.host.kernel_log import read_kernel_log
from harness.host.kernel_resets import reset_lines
from harness.run.gpu_probe import probe_gpu
from harness.run.gpu_recovery import Actions, Step, probe, recover_gpu, wait_for_memory
from harness.run.spec import Run, RunSpec, resolve_run

UNKILLABLE = "a process of a run on it cannot be killed"

MemoryBefore = Mapping[int, int | None]


@dataclass(frozen=True)
class HealthReport:
    """The findings after a run. `problems` make it a host fault, `unhealthy` GPUs (index -> why) take no more runs."""

    problems: tuple[str, ...] = ()
    unhealthy: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkup:
    """The GPUs of one run, and where what is seen of them is written down. `root` can be a fake tree."""

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
        """Tell whether the environment passed a probe on a GPU since the boot."""
        return gpu.index in proven_gpus(self.results, self.spec.intent.host, self.spec.environment_hash)

    def note(self, step: Step, when: HealthOccasion) -> Step:
        """Write a step down at once: what follows may never return."""
        line = HealthStep(
            machine=self.spec.intent.host.machine,
            boot_id=self.spec.intent.host.boot_id,
            run_id=self.spec.intent.run_id,
            environment=self.spec.environment_hash,
            when=when,
            check=step.check,
            gpu=step.gpu,
            good=step.good,
            detail=step.detail,
            at=time.time(),
            seconds=round(step.seconds, 3),
        )
        append_steps(self.results, [line])
        return step


def before_run(checkup: Checkup) -> tuple[MemoryBefore, tuple[str, ...]]:
    """Return how much memory is in use on each GPU of a run that is about to start, and what forbids to start it.

    An environment that was never probed on a GPU since the boot is probed first: without that, a probe that fails
    after the run could not tell an unhealthy GPU from an environment that never worked on it. A probe that cannot be
    killed forbids the run. The memory is None where the driver does not tell.

    Raises:
        UserError: when the results folder cannot be written.
    """
    before = {gpu.index: checkup.actions.memory_in_use(gpu) for gpu in checkup.spec.gpus}
    known = {
        step.gpu
        for step in read_steps(checkup.results, checkup.spec.intent.host.machine)
        if (step.boot_id, step.environment, step.check)
        == (checkup.spec.intent.host.boot_id, checkup.spec.environment_hash, "probe")
    }
    steps = [
        checkup.note(probe(gpu, checkup.actions, proven=False), "before-run")
        for gpu in checkup.spec.gpus
        if gpu.index not in known
    ]
    return before, tuple(_unkillable(steps))


def after_failure(
    checkup: Checkup,
    before: MemoryBefore,
    since: float,
    actions: Actions | None = None,
    *,
    unkillable: bool = False,
) -> HealthReport:
    """Check the GPUs of a run that did not complete, and write down what was seen.

    `since`: when it began, in seconds since 1970, for the kernel log. `unkillable`: something of it cannot be killed,
    so that its GPUs cannot be checked, and only the kernel log is read.

    Raises:
        UserError: when the results folder cannot be written.
    """
    if not checkup.spec.gpus:
        return HealthReport()
    # The kernel log first: a reset of ours is not to be found in it.
    steps = [checkup.note(_kernel_log(checkup, since), "after-failure")]
    for gpu in () if unkillable else checkup.spec.gpus:
        steps_of_gpu = recover_gpu(gpu, before.get(gpu.index), actions or checkup.actions, proven=checkup.proven(gpu))
        steps += [checkup.note(step, "after-failure") for step in steps_of_gpu]
    if any(_unkillable(steps)):
        after_unkillable(checkup)
    return _report(checkup, steps)


def after_unkillable(checkup: Checkup) -> None:
    """Write down that the GPUs of a run can be used no more: something of it, or of its probe, cannot be killed.

    It may hold the locks of all of them for ever: a harness that would probe them first would never get them.

    Raises:
        UserError: when the results folder cannot be written.
    """
    for gpu in checkup.spec.gpus:
        checkup.note(Step("probe", gpu.index, False, UNKILLABLE, 0.0), "after-failure")


def after_interruption(checkup: Checkup, before: MemoryBefore, actions: Actions | None = None) -> HealthReport:
    """Wait until the GPUs of a run that somebody ended have their memory back, and no more.

    Raises:
        UserError: when the results folder cannot be written.
    """
    waited = [wait_for_memory(gpu, before.get(gpu.index), actions or checkup.actions) for gpu in checkup.spec.gpus]
    return _report(checkup, [checkup.note(step, "after-failure") for step in waited])


def after_completion(checkup: Checkup) -> None:
    """Write down that a run completed on its GPUs: with its artefacts verified it is its own probe.

    Raises:
        UserError: when the results folder cannot be written.
    """
    for gpu in checkup.spec.gpus:
        checkup.note(Step("probe", gpu.index, True, "a run completed on it", 0.0), "after-completion")


def recheck(run: Run, results: Results, executor: Executor, root: Path = Path("/")) -> dict[int, str]:
    """Probe the unhealthy GPUs of a planned run again, as one may have been reset; return which still are, and why.

    Raises:
        UserError: when the results folder cannot be written.
    """
    # Where recovery sweeps what a killed harness left.
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".probe-", suffix=".tmp", dir=DATA) as place:
        checkup = Checkup(resolve_run(run, RunFolder(Path(place))), results, executor, root)
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


def _kernel_log(checkup: Checkup, since: float) -> Step:
    began = time.monotonic()
    log = read_kernel_log(since, checkup.root)
    seconds = time.monotonic() - began
    if log.missing is not None:
        return Step("kernel-log", None, None, log.missing, seconds)
    addresses = {address for gpu in checkup.spec.gpus if (address := pci_address(gpu, checkup.root))}
    resets = reset_lines(log.lines, addresses)
    more = f" (and {len(resets) - 1} more)" if len(resets) > 1 else ""
    told = resets[0] + more if resets else f"{len(log.lines)} lines, no reset among them"
    return Step("kernel-log", None, not resets, told, seconds)


def _problems(steps: Iterable[Step]) -> Iterator[str]:
    """Yield what makes the run a host fault. Memory that is not back does not: the probe says whether the GPU works."""
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


def _report(checkup: Checkup, steps: Sequence[Step]) -> HealthReport:
    report = HealthReport(tuple(_problems(steps)), unhealthy_gpus(checkup.results, checkup.spec.intent.host))
    told = [
        {"check": s.check, "gpu": s.gpu, "good": s.good, "detail": s.detail, "seconds": round(s.seconds, 3)}
        for s in steps
    ]
    if steps:
        content = {"schema": 2, "problems": report.problems, "unhealthy": report.unhealthy, "steps": told}
        checkup.spec.folder.write(RunFolder.HEALTH, content)
    return report
