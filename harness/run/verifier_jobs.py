"""The processes that verify a run, in this host's own environment."""

from dataclasses import dataclass, replace
from pathlib import Path

from harness.environments.environment import Environment
from harness.environments.executors.container import WORK, container_of, inside
from harness.environments.executors.job import Job
from harness.environments.executors.pids import pids_limit
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.outcome.tolerances import COMPARED_STEPS
from harness.matrix.workload_options import REFERENCE_OPTIONS, arguments, options_of
from harness.run.launch import base_variables
from harness.run.requested_run import Run

# A module of the app. A program's pickles are never executed: only the types that weights consist of are loaded.
LOAD_WEIGHTS = "vpoc.training.model_file.saved_file"


@dataclass(frozen=True)
class VerifierJobs:
    """The processes that verify a run in `environment`: without devices, in a folder of their own.

    In a container they can read only what they need: the copies of what the run left, and the data.
    """

    run: Run
    folder: RunFolder
    environment: Environment

    def verify(self) -> Job:
        """Return the process that computes parts of the run again; its arguments do not name the models yet."""
        run, folder, data = self.run, self.folder, Path(self.run.data.path)
        seen, found = self._work, inside(data) if self.environment.image else data
        words = arguments(options_of(run.workload, REFERENCE_OPTIONS))
        places = ("--data", str(found), "--output", str(seen.verification), "--run-dir", str(seen.path))
        asked = ("--workload-hash", run.workload_hash, "--steps", str(COMPARED_STEPS))
        return self._job(self.environment.app("verify", *places, *asked, *words), (data, folder.kept))

    def load(self, file: Path) -> Job:
        """Return the process that loads a copy of a file of weights."""
        found = inside(self.folder.kept) / file.name if self.environment.image else file
        return self._job((str(self.environment.python), "-m", LOAD_WEIGHTS, str(found)), (self.folder.kept,))

    @property
    def _work(self) -> WorkFolder:
        """Their work folder, under the path that they see."""
        return WorkFolder(WORK) if self.environment.image else self.folder.verifying

    def _job(self, command: tuple[str, ...], readable: tuple[Path, ...]) -> Job:
        run, folder, environment = self.run, self.folder, self.environment
        work = Path(folder.verifying.path)
        container = None
        if environment.image is not None:
            alone = container_of(environment.image, work, readable, run.host.memory_bytes)
            container = replace(alone, pids=pids_limit(run.host.cores, 1))
        temporary = self._work.temporary if container else folder.temporary
        variables = {**base_variables(self._work, temporary, run.workload.threads), **environment.variables}
        # Nothing is imported from the current folder, whoever may have written there.
        variables |= {"PYTHONSAFEPATH": "1"}
        log = folder.verification_log
        note = folder.note_of(log, contained=container is not None)
        return Job(command, variables, folder.path, log, container, note, work)
