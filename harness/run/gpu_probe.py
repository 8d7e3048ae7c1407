"""Probes one GPU in the environment of a run: `vpoc probe` in a fresh process or container that sees no other GPU."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from harness.base.files.json_bounds import load_json
from harness.base.interrupts import GRACE_SECONDS
from harness.base.text import LONGEST_QUOTE, safe_text
from harness.environments.docker.own_images import is_own
from harness.environments.executors.job import Executor, Handle, JobLost
from harness.evidence.app_reports.last_line import last_line
from harness.host.facts import GpuFacts
from harness.host.processes.run_processes import end_processes_of_run
from harness.run.spec import RunSpec

# Each check takes a few seconds, and its result is exact, so that a GPU that computes wrongly fails, too.
PROBE_CHECKS = ("import", "device", "copy", "matmul-fp32", "optimizer-step")
LIMIT_SCALE = 0.5
# Longest probe, in seconds: above the sum of the checks' own limits, with the time to end them.
LIMIT_SECONDS = 540
POLL_SECONDS = 0.1
# Largest output of a probe that is read, in bytes: its JSON with the warnings around it.
LARGEST_ANSWER = 4 << 20
NOT_BUILT_HERE = " (in an image that was not built here and may lie)"


@dataclass(frozen=True)
class Probed:
    """The answer of a probe.

    `good`: whether the GPU passed; None where the answer says nothing about the GPU.
    `of_environment`: whether the probe failed before it asked anything of the GPU.
    """

    good: bool | None
    detail: str
    killable: bool = True
    of_environment: bool = False


class _Check(BaseModel):
    # Apps of schema 1 print the former names.
    check: str = Field(validation_alias=AliasChoices("check", "rung"))
    outcome: str
    detail: str
    killable: bool


class _Answer(BaseModel):
    """The output of `vpoc probe --json`, as far as it is needed here."""

    breaks_at: str | None
    checks: list[_Check] = Field(validation_alias=AliasChoices("checks", "rungs"))


def probe_gpu(spec: RunSpec, gpu: GpuFacts, executor: Executor, limit: float = LIMIT_SECONDS) -> Probed:
    """Probe a GPU in the environment of a run, without its preset. The output is kept in the run folder."""
    checks = (word for check in PROBE_CHECKS for word in ("--check", check))
    job = spec.probe(gpu, ("--limit-scale", str(LIMIT_SCALE), *checks))
    try:
        handle = executor.start(job)
    except (OSError, JobLost) as error:
        return Probed(None, f"the probe could not be started: {error}")
    until = time.monotonic() + limit
    try:
        while (exit_ := handle.poll()) is None and (
            handle.unanswered or time.monotonic() < until + handle.silent_seconds
        ):
            time.sleep(POLL_SECONDS)
        # Also after the probe ended by itself, because processes that it started may be left.
        gone = _end(handle, job.folder)
    except JobLost as lost:
        return Probed(None, f"the probe was lost: {lost}", killable=_end(handle, job.folder))
    except BaseException:
        _end(handle, job.folder)
        raise
    probed = read_answer(job.log) if exit_ else Probed(False, f"the probe did not end in {limit:.0f} s")
    if job.container is None:
        return replace(probed, killable=probed.killable and gone)
    of_others = probed.good is False and not is_own(job.container.image)
    # The engine reports whether a process in the container cannot be killed; what the image says does not count.
    return replace(probed, detail=f"{probed.detail}{NOT_BUILT_HERE * of_others}", killable=gone)


def read_answer(log: Path) -> Probed:
    """Return what the output of a probe says about the GPU; warnings around its JSON are skipped."""
    try:
        with log.open("rb") as stream:
            text = stream.read(LARGEST_ANSWER)
        answer = _Answer.model_validate(load_json(text[text.find(b"{") : text.rfind(b"}") + 1]))
    except (OSError, ValueError):
        return Probed(None, f"the probe gave no answer: {last_line(log)}")
    killable = all(one.killable for one in answer.checks)
    if answer.breaks_at is None:
        passed = sum(one.outcome == "passed" for one in answer.checks)
        if passed == len(PROBE_CHECKS):
            return Probed(True, f"{passed} checks passed", killable)
        return Probed(None, f"only {passed} of {len(PROBE_CHECKS)} checks were made", killable)
    broken = next((one for one in answer.checks if one.check == answer.breaks_at), None)
    if broken is None:
        return Probed(None, f"the probe gave no answer: {last_line(log)}")
    detail = f"{safe_text(broken.check)} {safe_text(broken.outcome)}: {safe_text(broken.detail, LONGEST_QUOTE)}"
    # Without torch nothing was asked of the GPU.
    if broken.check == "import":
        return Probed(None, detail, killable, of_environment=True)
    return Probed(False, detail, killable)


def _end(handle: Handle, folder: Path) -> bool:
    """End a probe, with processes that a vanished engine left; return False when one cannot be killed."""
    return handle.stop(GRACE_SECONDS) and end_processes_of_run(folder, GRACE_SECONDS)
