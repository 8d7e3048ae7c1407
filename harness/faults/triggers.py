"""Decides when the harness injects a fault: before the first process of a run starts, or while the run trains."""

import threading
import time
from typing import Self

from harness.environments.executors.job import Executor, Handle, Job
from harness.evidence.app_reports.progress import ProgressReader
from harness.evidence.files.run_folder import RunFolder
from harness.faults.external import ExternalFault, Site
from harness.host.engine_errors import explain

STEP_POLL_SECONDS = 0.1


class InjectingExecutor:
    """An executor that injects a fault into the run folder before it starts the first process there."""

    def __init__(self, executor: Executor, fault: ExternalFault) -> None:
        self._executor = executor
        self._fault: ExternalFault | None = fault

    def start(self, job: Job) -> Handle:
        """Start a job as the executor does, after injecting the fault into the first one."""
        fault, self._fault = self._fault, None
        if fault:
            fault.before_start(job.folder)
        return self._executor.start(job)

    def find(self, job: Job) -> Handle | None:
        """Find a job as the executor does."""
        return self._executor.find(job)


class BackgroundInjection:
    """A context manager that injects a fault from a thread, once the run makes steps.

    `injected`: when the fault was injected, by the monotonic clock; None if it was not.
    `problem`: why it could not be injected.
    """

    def __init__(self, fault: ExternalFault, site: Site) -> None:
        self._fault = fault
        self._site = site
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait_and_inject, daemon=True)
        self.injected: float | None = None
        self.problem: str | None = None

    def __enter__(self) -> Self:
        if self._fault.acts_while_training:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _wait_and_inject(self) -> None:
        reader = ProgressReader(RunFolder(self._site.folder).new_work)
        while not self._site.folder.exists() or not any(line.phase == "step" for line in reader.new()):
            if self._over.wait(STEP_POLL_SECONDS):
                self.problem = "the training made no step"
                return
        began = time.monotonic()
        try:
            self._fault.while_training(self._site)
            self.injected = began
        except Exception as error:
            # Keep any error, because an exception in this thread would be lost.
            self.problem = explain(error) or type(error).__name__
