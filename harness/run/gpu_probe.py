"""Probes one GPU in the environment of a run: `vpoc probe` in a fresh process or container that sees no other."""

import time
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from pydantic import BaseModel, ValidationError

from harness.environments.executors.container import KFD, Container
from harness.environments.executors.job import Executor, Handle, Job, JobLost
from harness.evidence.leftovers import last_line
from harness.host.facts import GpuFacts
from harness.host.processes import end_processes_of_run
from harness.run.process_environment import visible_devices
from harness.run.spec import Run

# A few seconds each; what they compute is exact, so that a GPU that computes wrongly fails too.
RUNGS = ("import", "device", "copy", "matmul-fp32", "optimizer-step")
LIMIT_SCALE = 0.5
# Above the sum of the rungs' own limits, with the time they need to be ended.
LIMIT_SECONDS = 540
GRACE_SECONDS = 10
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Probed:
    """What a probe says of a GPU: `good` is None where it says nothing of it."""

    good: bool | None
    detail: str
    killable: bool = True


class _Trial(BaseModel):
    rung: str
    outcome: str
    detail: str
    killable: bool


class _Climb(BaseModel):
    """What `vpoc probe --json` prints, as far as it is needed here."""

    breaks_at: str | None
    rungs: list[_Trial]


def probe_gpu(run: Run, folder: Path, gpu: GpuFacts, executor: Executor, limit: float = LIMIT_SECONDS) -> Probed:
    """Probe a GPU in the environment of a run, without its preset. Its output is kept in the run's folder."""
    names = (f"probe-gpu{gpu.index}{number}.txt" for number in chain([""], (f"-{n}" for n in count(2))))
    log = next(file for name in names if not (file := folder / name).exists())
    container = _container(run, folder, gpu)
    visible = {} if container else visible_devices((gpu.index,))
    words = ("--limit-scale", str(LIMIT_SCALE), *(word for rung in RUNGS for word in ("--rung", rung)))
    variables = {**run.plain_variables(folder), **visible}
    try:
        handle = executor.start(Job(run.probe_command(*words), variables, folder, log, container))
    except (OSError, JobLost) as error:
        return Probed(None, f"the probe could not be started: {error}")
    until = time.monotonic() + limit
    try:
        while (exit_ := handle.poll()) is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        # Also after it ended by itself: what it started may be left.
        gone = _end(handle, folder)
    except JobLost as lost:
        return Probed(None, f"the probe was lost: {lost}", killable=_end(handle, folder))
    except BaseException:
        _end(handle, folder)
        raise
    if exit_ is None:
        return Probed(False, f"the probe did not end in {limit:.0f} s", killable=gone)
    told = read_climb(log)
    return replace(told, killable=told.killable and gone)


def read_climb(log: Path) -> Probed:
    """What a probe's output says of the GPU; warnings around its JSON are passed over."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
        climb = _Climb.model_validate_json(text[text.find("{") : text.rfind("}") + 1])
    except (OSError, ValidationError):
        return Probed(None, f"the probe gave no answer: {last_line(log)}")
    killable = all(trial.killable for trial in climb.rungs)
    if climb.breaks_at is None:
        passed = sum(trial.outcome == "passed" for trial in climb.rungs)
        told = f"{passed} checks passed" if passed == len(RUNGS) else f"only {passed} of {len(RUNGS)} checks were made"
        return Probed(True if passed == len(RUNGS) else None, told, killable)
    broken = next(trial for trial in climb.rungs if trial.rung == climb.breaks_at)
    detail = f"{broken.rung} {broken.outcome}: {broken.detail}"
    # Without torch nothing was asked of the GPU.
    return Probed(None if broken.rung == "import" else False, detail, killable)


def _end(handle: Handle, folder: Path) -> bool:
    """End a probe, and what of it an engine that is gone has left; False when something cannot be killed."""
    return handle.stop(GRACE_SECONDS) and end_processes_of_run(folder, GRACE_SECONDS)


def _container(run: Run, folder: Path, gpu: GpuFacts) -> Container | None:
    container = run.container(folder)
    nodes = tuple(device for device in run.devices if device.inside in (KFD, gpu.render_node))
    return replace(container, devices=nodes) if container else None
