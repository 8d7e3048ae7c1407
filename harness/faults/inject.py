"""Injects faults into real runs, each followed by a healthy run in the same cell."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from harness.base.errors import UserError
from harness.evidence.files.run_files import Record
from harness.evidence.records import new_run_id
from harness.faults.external import Site
from harness.faults.injection import Injection, last_progress, seconds_to_find
from harness.faults.kinds import WORKLOAD, FaultKind
from harness.faults.own_engine import OwnEngine
from harness.faults.target import InjectionTarget
from harness.faults.triggers import BackgroundInjection, InjectingExecutor
from harness.host.engine_errors import ENGINE_ERRORS, Notify, explain
from harness.matrix.stacks import ExecutorName
from harness.run.requested_run import Run


def inject_all(
    kinds: Sequence[FaultKind], target: InjectionTarget, repeats: int, notify: Notify
) -> Iterator[Injection]:
    """Inject each kind of fault `repeats` times, each time with a healthy run after it.

    Raises:
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    for position, kind in enumerate(kinds, start=1):
        if why := why_skipped(kind, target.executor_name):
            yield Injection(kind, target.executor_name, skipped=why)
            continue
        for repeat in range(1, repeats + 1):
            again = f", repeat {repeat}" if repeats > 1 else ""
            notify(f"[{position}/{len(kinds)}] {kind.name}{again}: {kind.what}")
            yield inject_fault(kind, target)


def why_skipped(kind: FaultKind, executor: ExecutorName) -> str | None:
    """Return why a kind of fault is not injected here; None if it is."""
    if executor not in kind.executors:
        return "only in containers" if executor == "process" else "only as a process"
    return kind.external.why_not()


def inject_fault(kind: FaultKind, target: InjectionTarget, *, next_run: bool = True) -> Injection:
    """Inject a fault into a run and return the result; without `next_run` no healthy run follows."""
    try:
        with _with_engine(kind, target) as (here, own):
            return _inject(kind, here, own, next_run=next_run)
    except UserError as error:
        return Injection(kind, target.executor_name, trouble=(str(error),))
    except ENGINE_ERRORS as error:
        return Injection(kind, target.executor_name, trouble=(f"the Docker engine: {explain(error)}",))


def run_healthy(target: InjectionTarget) -> Record:
    """Make the run that follows an injected fault: the same training without a fault."""
    return target.run(WORKLOAD, "healthy")


def _inject(kind: FaultKind, target: InjectionTarget, own: OwnEngine | None, *, next_run: bool) -> Injection:
    run_id = new_run_id(f"fault-{kind.name}")
    folder = target.results.run_folder(run_id)

    def with_fault(run: Run) -> Run:
        return replace(kind.external.change(run), injected_fault=kind.app or kind.name)

    began = time.monotonic()
    try:
        with BackgroundInjection(kind.external, Site(folder, target.engine, own)) as background:
            executor = InjectingExecutor(target.bench.executor, kind.external)
            record = target.run(kind.workload, "fault", run_id, with_fault, executor)
        seconds = seconds_to_find(folder, background.injected or last_progress(folder) or began)
    finally:
        kind.external.after(folder)
    if own:
        own.start()
        target.recover()
    trouble = [f"left: {what}" for what in target.left_of(run_id)]
    if background.problem:
        trouble.append(f"the fault was not injected: {background.problem}")
    if next_run and (after := run_healthy(target)).outcome != "completed":
        trouble.append(f"the next run, {after.intent.run_id}, {after.outcome}: {after.detail}")
    found = seconds if kind.expected.is_alarm else None
    return Injection(kind, target.executor_name, record, found, tuple(trouble))


@contextmanager
def _with_engine(kind: FaultKind, target: InjectionTarget) -> Iterator[tuple[InjectionTarget, OwnEngine | None]]:
    if kind.external.needs_own_engine:
        with target.with_own_engine() as (here, own):
            yield here, own
    else:
        yield target, None
