"""Trainings whose attempts end as scripts say; nothing is really run."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.campaign.bench.bench import Bench
from harness.environments.environment import Environment
from harness.evidence.files.app_files import InputFile, Progress, Result
from harness.evidence.files.run_files import Explanation, HealthStep, Interruption, Record
from harness.evidence.files.work_folder import hand_over, steps_done
from harness.evidence.gpus.health_log import append_steps
from harness.matrix.cells import Cell
from harness.run.requested_run import Run
from harness.run.spec import resolve_run
from harness.training.attempt import TrainingJob
from harness.training.attempts import ATTEMPTS_FILE
from harness.training.state import StateFile, TrainingState
from harness.training.train import TrainingResult, train
from tests.harness.pretending import RecordingDisplay

GPU_CELL = "rocm6.3-torch2.9.1-plain"
WORDS = "vpoc: something is wrong with the data"


@dataclass(frozen=True)
class Script:
    """How an attempt ends, and the step of the checkpoint that it writes before that (0: none)."""

    outcome: str = "failed"
    class_: str | None = "crash"
    step: int = 0
    exit: str = "exit 1"
    interrupt: bool = False
    with_result: bool = False
    lines: Sequence[Progress] = ()
    unhealthy: tuple[int, ...] = ()
    not_verified: str | None = None
    no_verifier: str | None = None
    accounted: tuple[int, ...] | None = None
    reads_checkpoints: bool = True
    interrupted_by: Interruption | None = None
    first_step: bool | None = None


DONE = Script("completed", None, 58, "exit 0", with_result=True)


class ScriptedAttemptsBench(Bench):
    """A bench whose attempts take no time and end as their scripts say; `made` lists the runs that it was asked for."""

    scripts: list[Script]
    result: Result
    made: list[Run]

    def environment(self, cell: Cell, _notify: Any = None) -> Environment:
        return self._environments.setdefault(cell.id, Environment(Path("/python"), {}, {}, cell.stack.device))

    def data_of(self, *_: object) -> InputFile:
        return InputFile(path="/bars.csv", sha256="a" * 64)

    @contextmanager
    def gpus_for(self, *_: object) -> Iterator[int]:
        yield 0

    def run_cell(self, run: Run, observe: Callable[[Progress], None] = lambda _: None, *_: object) -> Record:
        self.made.append(run)
        script = self.scripts.pop(0)
        folder = self.results.folder_of(run.run_id)
        intent = resolve_run(run, folder).intent.model_copy(update={"not_verified": script.no_verifier})
        self.results.begin(intent)
        folder.log.write_text(f"something\n{WORDS}\n", encoding="utf-8")
        output = Path(folder.work.output)
        hand_over(run.resume_from or (), output)
        if script.step:
            write_checkpoint(output / f"{run.name}_checkpoints", script.step)
        interrupt: KeyboardInterrupt | None = KeyboardInterrupt("SIGINT") if script.interrupt else None
        try:
            for line in script.lines:
                observe(line)
        except KeyboardInterrupt as caught:
            interrupt = caught
        outcome, class_ = ("interrupted", None) if interrupt else (script.outcome, script.class_)
        if script.with_result:
            for ending in (".pt", "_metadata.json", "_curves.csv"):
                (output / f"{run.name}{ending}").write_text(f"of {run.run_id}", encoding="utf-8")
            kept = folder.kept_model(1)
            kept.parent.mkdir()
            kept.write_text(f"of {run.run_id}", encoding="utf-8")
            # The model in the attempt's own folder may have changed since it was verified, so the kept one is used.
            (output / f"{run.name}.pt").write_text("another", encoding="utf-8")
        before = (step,) if script.reads_checkpoints and (step := resumed_at(run)) else ()
        record = Record(
            intent=intent,
            outcome=outcome,
            diagnosis=class_,
            detail="as it was to be",
            exit={"train": script.exit},
            ran_on="",
            finished=1e9,
            seconds=1.0,
            last_phase=None,
            result=self.result_of(run).model_copy(update={"resumed_at": before}) if script.with_result else None,
            not_verified=script.not_verified,
            steps_accounted=script.accounted,
            interrupted_by=script.interrupted_by,
            first_step=script.first_step,
            explanation=explained(class_) if class_ else None,
        )
        self.results.finish(record)
        self._fall_unhealthy(script.unhealthy, run)
        if interrupt:
            raise interrupt
        return record

    def result_of(self, run: Run) -> Result:
        model = self.result.model.model_copy(update={"file": f"{run.name}.pt"})
        about = {"model": model, "metadata_file": f"{run.name}_metadata.json", "steps_done": 100}
        return self.result.model_copy(update=about)

    def _fall_unhealthy(self, gpus: Sequence[int], run: Run) -> None:
        about = {"machine": self.host.machine, "boot_id": self.host.boot_id, "run_id": run.run_id, "environment": "e"}
        how: dict[str, Any] = {"when": "after-failure", "check": "probe", "good": False, "detail": "gone"}
        append_steps(self.results, [HealthStep(**about, **how, gpu=gpu, at=1e9, seconds=1.0) for gpu in gpus])


def explained(class_: str) -> Explanation:
    return Explanation(rule=None, class_=class_, cause="", remedy="", link=None, presets=(), lines=())


def write_checkpoint(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = f"the weights after step {step}".encode()
    (folder / f"step-{step:09}.{hashlib.sha256(content).hexdigest()}.pt").write_bytes(content)


@dataclass
class TrainingUnderTest:
    """A training that is made in several calls."""

    bench: ScriptedAttemptsBench
    job: TrainingJob
    file: StateFile
    display: RecordingDisplay
    state: TrainingState

    def train(self, *scripts: Script) -> TrainingResult:
        """Train, with these scripts for the coming attempts; a training that was begun is resumed."""
        self.bench.scripts = list(scripts)
        state = self.file.read(self.state.key) or self.state
        return train(self.job, state, self.file, self.bench, self.display)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of attempts.jsonl."""
        return [json.loads(line) for line in (self.job.output / ATTEMPTS_FILE).read_text(encoding="utf-8").splitlines()]


MakeTraining = Callable[..., TrainingUnderTest]
Probes = list[tuple[int, ...]]


def resumed_at(run: Run) -> int | None:
    return None if run.resume_from is None else steps_done(run.resume_from)
