"""The steps that check and recover a GPU, until it is known to be healthy or unhealthy."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.wording import many
from harness.evidence.files.run_files import HealthCheck, HealthOccasion, HealthStep, Intent
from harness.host.facts import GpuFacts
from harness.host.gpus.amdgpu import pci_address
from harness.host.gpus.gpu_reset import Reset
from harness.host.gpus.kernel_resets import reset_lines
from harness.host.kernel_log import read_kernel_log
from harness.run.gpu_probe import Probed

# Longest wait for a GPU's memory after a run, in seconds.
MEMORY_SECONDS = 60
POLL_SECONDS = 0.5
# A desktop takes and gives back up to this many bytes by itself; a training holds more.
SLACK_BYTES = 256 << 20
MIB = 1 << 20


@dataclass(frozen=True)
class Actions:
    """The actions of recovery on a GPU of this host, and a clock in seconds."""

    memory_in_use: Callable[[GpuFacts], int | None]
    probe: Callable[[GpuFacts], Probed]
    reset: Callable[[GpuFacts], Reset]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Step:
    """One step of recovery: its finding, and the seconds it took.

    `good`: None where nothing can be concluded.
    `of_environment`: whether a probe failed before it asked anything of the GPU.
    `in_doubt`: whether a probe failed on the GPU, but in an environment that never passed one there.
    """

    check: HealthCheck
    gpu: int | None
    good: bool | None
    detail: str
    seconds: float
    killable: bool = True
    of_environment: bool = False
    in_doubt: bool = False

    def line(self, when: HealthOccasion, intent: Intent, environment: str) -> HealthStep:
        """Return the step as a line of the health log, dated now.

        `environment`: the hash of the environment in which a probe ran.
        """
        return HealthStep(
            machine=intent.host.machine,
            boot_id=intent.host.boot_id,
            run_id=intent.run_id,
            environment=environment,
            when=when,
            check=self.check,
            gpu=self.gpu,
            good=self.good,
            detail=self.detail,
            at=time.time(),
            seconds=round(self.seconds, 3),
        )


def recover_gpu(gpu: GpuFacts, memory_before: int | None, actions: Actions, *, proven: bool) -> Iterator[Step]:
    """Wait for the GPU's memory, probe the GPU, and if it fails reset it and probe it again."""
    yield wait_for_memory(gpu, memory_before, actions)
    yield from probe_or_reset(gpu, actions, proven=proven)


def probe_or_reset(gpu: GpuFacts, actions: Actions, *, proven: bool) -> Iterator[Step]:
    """Probe a GPU, and if it fails reset it and probe it again.

    `proven`: whether the environment of the probe passed on this GPU before. If not, the environment itself may be at
    fault when the probe fails: then nothing is concluded and nothing is reset, except after a probe that cannot be
    killed.
    """
    first = probe(gpu, actions, proven=proven)
    yield first
    if first.good is not False:
        return
    began = actions.now()
    reset = actions.reset(gpu)
    yield Step("reset", gpu.index, reset.done or None, reset.detail, actions.now() - began)
    if reset.done:
        yield probe(gpu, actions, proven=proven)


def wait_for_memory(gpu: GpuFacts, before: int | None, actions: Actions, most: float = MEMORY_SECONDS) -> Step:
    """Wait until the GPU holds no more memory than before the run, `most` seconds at most.

    Nothing is concluded from memory that did not come back if `most` is less than a minute.
    """
    began = actions.now()
    used = actions.memory_in_use(gpu)
    if before is None or used is None:
        return Step("memory", gpu.index, None, "the driver does not say how much memory is in use", 0.0)
    while used > before + SLACK_BYTES and actions.now() - began < most:
        actions.sleep(POLL_SECONDS)
        now_used = actions.memory_in_use(gpu)
        used = used if now_used is None else now_used
    seconds = actions.now() - began
    back = used <= before + SLACK_BYTES
    detail = f"{used // MIB} MiB in use, {before // MIB} MiB before the run"
    good = back if back or most >= MEMORY_SECONDS else None
    return Step("memory", gpu.index, good, detail if back else f"not back after {seconds:.0f} s: {detail}", seconds)


def probe(gpu: GpuFacts, actions: Actions, *, proven: bool) -> Step:
    """Probe a GPU once. `proven`: as in `probe_or_reset`."""
    began = actions.now()
    probed = actions.probe(gpu)
    good, detail = probed.good, probed.detail
    if not probed.killable:
        # No environment alone can cause that.
        good = False
        detail += "; it cannot be killed"
    in_doubt = good is False and not proven and probed.killable
    if in_doubt:
        good = None
        detail += "; this environment never passed a probe on this GPU since the boot, so the fault may be its own"
    return Step(
        "probe", gpu.index, good, detail, actions.now() - began, probed.killable, probed.of_environment, in_doubt
    )


def look_for_resets(gpus: Iterable[GpuFacts], since: float, root: Path, now: float) -> Step:
    """Return whether the kernel log reports a reset of these GPUs from `since` (seconds since 1970) on.

    `root` holds the host's /sys and /dev; `now` is the present by the clock as it was at `since`. If an address of a
    GPU is not known, a reset of any GPU counts. `good` of the step is None where the log cannot be read.
    """
    began = time.monotonic()
    log = read_kernel_log(since, root, now)
    seconds = time.monotonic() - began
    if log.missing is not None:
        return Step("kernel-log", None, None, log.missing, seconds)
    # A GPU that fell off the bus has no folder any more, in which its address could be read.
    addresses = {gpu.address or pci_address(gpu, root) for gpu in gpus}
    resets = reset_lines(log.lines, () if None in addresses else {one for one in addresses if one})
    more = f" (and {len(resets) - 1} more)" if len(resets) > 1 else ""
    told = resets[0] + more if resets else f"{many(len(log.lines), 'line')}, no reset among them"
    return Step("kernel-log", None, not resets, told, seconds)
