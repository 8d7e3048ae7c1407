"""Checks the GPUs of a run before it."""

import time
from typing import NamedTuple

from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.health_log import LOCKED, last_steps, unhealthy_gpus
from harness.host.facts import GpuFacts
from harness.run.gpu_health import Checkup, MemoryBefore
from harness.run.gpu_recovery import MIB, Step, probe_or_reset

UNPROVEN = "not begun, as no stack's probe has passed on it since the boot"
IN_DOUBT = "not begun, as its stack's probe never passed on it and fails, and no probe followed the last run on it"
NO_KERNELS = "no kernels for this card: its probe fails where another stack's passed since the boot"
# A probe after a run serves the next one that begins within this time: nobody can have waited long to use the GPU.
SERVES_SECONDS = 600.0


class Readiness(NamedTuple):
    """The state of the GPUs of a run before it: memory in use, what forbids to start it, what its probe failed at.

    `no_kernels`: its environment's probe fails on a GPU where another's has passed since the boot; the run may show
    more, as its preset may help.
    """

    memory: MemoryBefore
    unfit: str | None = None
    no_kernels: str | None = None


def before_run(checkup: Checkup) -> Readiness:
    """Probe the GPUs of a run that is about to start.

    A GPU that fails is reset where that is possible. The probe after the run before serves, but for an environment that
    never passed one on that GPU since the boot: without that, a probe that fails after the run could not tell an
    unhealthy GPU from an environment that never worked on it. Where no environment has passed one on that GPU since the
    boot, or no probe followed the last run on it, a probe that fails forbids the run: it could be the doing of the host
    or of that run. The memory is None where the driver does not tell.

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
        # From here on a run is on it, whatever becomes of this process: no probe of before serves the next one.
        checkup.note(Step("memory", gpu.index, None, _in_words(before[gpu.index]), 0.0), "before-run")
    return Readiness(before, None, f"{NO_KERNELS}: {'; '.join(refuted)}" if refuted else None)


def _probed_before(checkup: Checkup, gpu: GpuFacts) -> Step:
    """Probe a GPU, and reset it where it fails; write all steps down and return the last."""
    for step in probe_or_reset(gpu, checkup.actions, proven=checkup.proven(gpu)):
        checkup.note(step, "before-run")
        if not step.killable:
            # It may hold the locks of all of them for ever.
            for other in checkup.spec.gpus:
                if other != gpu:
                    checkup.note(Step("probe", other.index, False, LOCKED, 0.0), "before-run")
    return step


def _serves(step: HealthStep | None, now: float) -> bool:
    """Return whether the last step on a GPU is a probe that the next run may rely on."""
    return step is not None and _is_good_probe(step) and 0 <= now - step.at < SERVES_SECONDS


def _is_good_probe(step: HealthStep | None) -> bool:
    """Return whether the last step on a GPU is a probe that passed: then no run was begun on it since."""
    return step is not None and step.check == "probe" and bool(step.good)


def _in_words(memory: int | None) -> str:
    return "its memory is not known" if memory is None else f"{memory // MIB} MiB in use before the run"
