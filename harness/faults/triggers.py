"""When the harness injects a fault: before the first process of a run, or while it trains."""

import threading
import time
from typing import Self

from harness.environments.executors.job import Executor, Handle, Job
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.reported.progress import ProgressReader
from harness.faults.external import ExternalFault, Site
from harness.host.engine import explain

STEP_POLL_SECONDS = 0.1


class InjectingExecutor:
    """An executor that injects a fault into the run folder before the first process is started there."""

    def __init__(self, executor: Executor, fault: ExternalFault) -> None:
        self._executor = executor
        self._fault: ExternalFault | None = fault

    def start(self, job: Job) -> Handle:
        """As the executor does."""
        fault, self._fault = self._fault, None
        if fault:
            fault.before_start(job.folder)
        return self._executor.start(job)

    def find(self, job: Job) -> Handle | None:
        """As the executor does."""
        return self._executor.find(job)


class BackgroundInjection:
    """A context manager that injects a fault in a thread, once the run makes steps.

    `injected`: when, by the monotonic clock; None where it was not. `problem`: why it could not be.
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
            # Whatever it is: in a thread nobody else would hear of it.
            self.problem = explain(error) or type(error).__name__
