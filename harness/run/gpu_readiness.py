"""Checks the GPUs of a run before the run."""

import time
from typing import NamedTuple

from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.health_log import LOCK_HELD_DETAIL, last_steps, unhealthy_gpus
from harness.host.facts import GpuFacts
from harness.run.gpu_health import Checkup, MemoryBefore
from harness.run.gpu_recovery import MIB, Step, probe_or_reset

UNPROVEN = "not begun, as no stack's probe has passed on it since the boot"
IN_DOUBT = "not begun, as its stack's probe never passed on it and fails, and no probe followed the last run on it"
NO_KERNELS = "no kernels for this card: its probe fails where another stack's passed since the boot"
# A probe after a run also serves the next run if that starts within this time, in seconds: nobody can have used the
# GPU for long in between.
SERVES_SECONDS = 600.0


class Readiness(NamedTuple):
    """The state of the GPUs of a run before the run.

    `memory`: the bytes in use, by GPU; None where the driver does not report them.
    `why_unfit`: why the run must not start; None where it may.
    `no_kernels`: the detail of a probe that fails in the run's environment on a GPU where another environment's has
        passed since the boot; None where there is none. The run starts all the same, because its preset may help.
    """

    memory: MemoryBefore
    why_unfit: str | None = None
    no_kernels: str | None = None


def before_run(checkup: Checkup) -> Readiness:
    """Probe the GPUs of a run that is about to start.

    No new probe is needed where the probe after the last run passed not long ago, unless the environment never passed
    one on that GPU since the boot. Without a passed probe, one that fails after the run could not tell an unhealthy GPU
    from an environment that never worked on it.

    A probe that fails forbids the run if no environment has passed one on that GPU since the boot, or if no probe
    followed the last run on it: the host or that run could be the cause.

    Raises:
        UserError: when the results folder cannot be written.
    """
    before = {gpu.index: checkup.actions.memory_in_use(gpu) for gpu in checkup.spec.gpus}
    unproven, doubtful, refuted = [], [], []
    last = last_steps(checkup.results, checkup.spec.intent.host)
    for gpu in checkup.spec.gpus:
        if checkup.proven(gpu) and _serves(last.get(gpu.index), time.time()):
            continue
        step = _probed_before(checkup, gpu)
        if step.good is None and not step.of_environment and not checkup.known(gpu):
            unproven.append(f"GPU {gpu.index}: {step.detail}")
        elif step.in_doubt and not _is_good_probe(last.get(gpu.index)):
            doubtful.append(f"GPU {gpu.index}: {step.detail}")
        elif step.in_doubt:
            refuted.append(f"GPU {gpu.index}: {step.detail}")
    unhealthy = unhealthy_gpus(checkup.results, checkup.spec.intent.host)
    forbidding = [f"GPU {gpu.index}: {unhealthy[gpu.index]}" for gpu in checkup.spec.gpus if gpu.index in unhealthy]
    if forbidding:
        return Readiness(before, f"not begun, on an unhealthy GPU: {'; '.join(forbidding)}")
    if unproven:
        return Readiness(before, f"{UNPROVEN}: {'; '.join(unproven)}")
    if doubtful:
        return Readiness(before, f"{IN_DOUBT}: {'; '.join(doubtful)}")
    for gpu in checkup.spec.gpus:
        # From here on the GPU counts as used, whatever becomes of this process: no earlier probe serves the next run.
        checkup.note(Step("memory", gpu.index, None, _in_words(before[gpu.index]), 0.0), "before-run")
    return Readiness(before, None, f"{NO_KERNELS}: {'; '.join(refuted)}" if refuted else None)


def _probed_before(checkup: Checkup, gpu: GpuFacts) -> Step:
    """Probe a GPU, and reset it if it fails; log all steps and return the last."""
    for step in probe_or_reset(gpu, checkup.actions, proven=checkup.proven(gpu)):
        checkup.note(step, "before-run")
        if not step.killable:
            # The probe may hold the locks of all the run's GPUs for ever.
            for other in checkup.spec.gpus:
                if other != gpu:
                    checkup.note(Step("probe", other.index, False, LOCK_HELD_DETAIL, 0.0), "before-run")
    return step


def _serves(step: HealthStep | None, now: float) -> bool:
    """Return whether the last step on a GPU is a probe on which the next run may rely."""
    return step is not None and _is_good_probe(step) and 0 <= now - step.at < SERVES_SECONDS


def _is_good_probe(step: HealthStep | None) -> bool:
    """Return whether the last step on a GPU is a probe that passed; if so, no run has started on it since."""
    return step is not None and step.check == "probe" and bool(step.good)


def _in_words(memory: int | None) -> str:
    return "its memory is not known" if memory is None else f"{memory // MIB} MiB in use before the run"
