"""A training from attempt to attempt: what becomes of each is synthetic, nothing is really run."""

import errno
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.campaign.bench import Bench
from harness.campaign.plan import plain_cpu_cell
from harness.campaign.under_way import noted_under_way
from harness.environments.environment import Environment
from harness.environments.executors.container import Container
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_files import InputFile, Progress, Result
from harness.evidence.health_log import append_steps
from harness.evidence.records import Results
from harness.evidence.run_files import Explanation, HealthStep, Record
from harness.evidence.run_folder import RunFolder
from harness.evidence.work_folder import WorkFolder, hand_over, steps_done
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.matrix.workload_options import options_of
from harness.run.asked import Run
from harness.run.spec import RunSpec, resolve_run
from harness.training.attempt import TrainingJob
from harness.training.attempts import ATTEMPTS_FILE
from harness.training.options import own_workload
from harness.training.own_program import publish_program
from harness.training.resumable import check_resumable
from harness.training.state import StateFile, TrainingState, new_state, open_state_file, unfinished_trainings
from harness.training.train import TrainingResult, train
from tests.harness.pretending import Listening

GPU_CELL = "rocm6.3-torch2.9.1-plain"
WORDS = "vpoc: something is wrong with the data"


@dataclass(frozen=True)
class Script:
    """The script of an attempt: how it ends, and the checkpoint that it writes before (0: none)."""

    outcome: str = "failed"
    class_: str | None = "crash"
    step: int = 0
    exit: str = "exit 1"
    interrupt: bool = False
    with_result: bool = False
    lines: Sequence[Progress] = ()
    unhealthy: tuple[int, ...] = ()
    not_verified: str | None = None
    accounted: tuple[int, ...] | None = None


DONE = Script("completed", None, 58, "exit 0", with_result=True)


class Pretending(Bench):
    """A bench that makes attempts in no time, as their scripts say, and keeps what it was asked to run."""

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
        intent = resolve_run(run, folder).intent
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
            # What is left in its own folder may be changed since it was verified.
            (output / f"{run.name}.pt").write_text("another", encoding="utf-8")
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
            result=self.result_of(run) if script.with_result else None,
            not_verified=script.not_verified,
            steps_accounted=script.accounted,
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
class Place:
    """Where a training is made, over several calls."""

    bench: Pretending
    job: TrainingJob
    file: StateFile
    display: Listening
    state: TrainingState

    def train(self, *scripts: Script) -> TrainingResult:
        """Train with these scripts to come; resumes what was begun."""
        self.bench.scripts = list(scripts)
        state = self.file.read("key") or self.state
        return train(self.job, state, self.file, self.bench, self.display)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """attempts.jsonl."""
        return [json.loads(line) for line in (self.job.output / ATTEMPTS_FILE).read_text(encoding="utf-8").splitlines()]


MakePlace = Callable[..., Place]
Probes = list[tuple[int, ...]]


@pytest.fixture(autouse=True)
def probed_again(monkeypatch: pytest.MonkeyPatch) -> Probes:
    """The GPUs of each new probe of unhealthy ones; it tells nothing new."""
    probes: Probes = []
    monkeypatch.setattr("harness.campaign.unhealthy.recheck", lambda run, *_: probes.append(run.gpus))
    return probes


@pytest.fixture
def make_place(tmp_path: Path, matrix: Matrix, result_values: dict[str, Any]) -> Iterator[MakePlace]:
    def make(host: HostFacts, cell: str = "cpu-plain", **options: Any) -> Place:
        results = Results(tmp_path / "results")
        gpus = tuple(gpu.index for gpu in host.gpus)
        bench = Pretending(results, ProcessExecutor(), host, gpus)
        bench.made, bench.result = [], Result.model_validate(result_values)
        output = tmp_path / "TRAINING"
        job = TrainingJob(matrix.cells[cell], plain_cpu_cell(matrix), own_workload(options), output, "bars")
        with open_state_file(results, host, output, "bars") as file:
            return Place(bench, job, file, Listening(), new_state("key", cell, None))

    yield make
    shutil.rmtree(tmp_path)


@pytest.fixture
def place(make_place: MakePlace, host: HostFacts) -> Place:
    """A training on a CPU."""
    return make_place(host)


def resumed_at(run: Run) -> int | None:
    return None if run.resume_from is None else steps_done(run.resume_from)


def test_a_training_that_ends_well_leaves_its_model_and_nothing_to_resume(place: Place) -> None:
    ended = place.train(DONE)
    output = place.job.output
    assert ended.model == output / "bars.pt"
    (run,) = place.bench.made
    assert (output / "bars.pt").read_text(encoding="utf-8") == f"of {run.run_id}"
    assert sorted(file.name for file in output.iterdir()) == [
        *("attempts.jsonl", "bars.pt", "bars_checkpoints", "bars_curves.csv", "bars_metadata.json")
    ]
    assert not place.file.file.exists()
    assert not list(place.bench.results.runs.glob("*/work/output/*_checkpoints"))
    assert (run.name, run.resume_from, run.cell) == ("bars", (), place.job.cell)
    command = resolve_run(run, RunFolder(output)).intent.commands["train"]
    assert "--resume" not in command


def test_a_model_whose_verification_took_too_long_is_there_and_that_is_said(place: Place) -> None:
    assert place.train(replace(DONE, not_verified="time-limit: still running")).model is not None
    assert place.display.problems == ["the model was not verified independently: time-limit: still running"]


def test_it_resumes_from_the_last_checkpoint_until_it_is_trained(place: Place) -> None:
    ended = place.train(Script(step=20), Script("hung", "hang-forward"), Script(step=40), DONE)
    assert ended.model
    assert [resumed_at(run) for run in place.bench.made] == [0, 20, 20, 40]
    assert "--resume" in resolve_run(place.bench.made[1], RunFolder(place.job.output)).intent.commands["train"]
    told = [(line["begin"], line["outcome"], line["step"]) for line in place.lines]
    assert told == [
        ("first", "failed", 20),
        ("same-again", "hung", 20),
        ("same-again", "failed", 40),
        ("same-again", "completed", 58),
    ]
    assert place.display.problems[1] == (
        "attempt 2 hung (hang-forward), 20 steps are kept; next: the same again, from the last checkpoint"
    )


def test_what_is_resumed_or_changed_is_another_identity_than_what_was_asked_for(place: Place) -> None:
    place.train(Script(class_="oom-gpu"), Script(class_="oom-gpu"), Script(step=20), DONE)
    intents = [resolve_run(run, RunFolder(place.job.output)).intent for run in place.bench.made]
    assert [intent.cell for intent in intents] == ["cpu-plain", *["cpu-plain~fresh-allocator"] * 3]
    assert intents[1].variables["train"]["MALLOC_ARENA_MAX"] == "2"
    assert intents[0].environment_hash != intents[1].environment_hash == intents[3].environment_hash
    assert [intent.options.get("micro_batch_size") for intent in intents] == [None, None, 32, 32]
    assert len({intent.workload_hash for intent in intents[1:]}) == 3
    assert intents[0].workload_hash == intents[1].workload_hash


def test_exhausted_fallbacks_end_it_and_are_tried_again_when_asked(place: Place) -> None:
    ended = place.train(*[Script(step=20)] * 8)
    assert ended.model is None
    assert ended.exhausted
    assert "without getting further than step 20" in ended.exhausted
    begins = [line["begin"] for line in ended.attempts]
    ended = place.train(Script(), DONE)
    assert [line["begin"] for line in ended.attempts] == [*begins, "by-hand", "same-again"]
    assert resumed_at(place.bench.made[-2]) == 20
    assert place.bench.made[-2].cell == place.job.cell


def test_ctrl_c_is_reported_and_the_same_call_resumes(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        place.train(Script(), Script(step=30, interrupt=True))
    assert [(line["begin"], line["outcome"]) for line in place.lines] == [
        ("first", "failed"),
        ("same-again", "interrupted"),
    ]
    assert place.train(DONE).model
    assert place.lines[-1]["begin"] == "resumed"
    assert resumed_at(place.bench.made[-1]) == 30


def test_an_attempt_that_was_noted_and_never_begun_is_made(place: Place) -> None:
    with pytest.raises(IndexError):
        place.train(Script(step=20))
    assert place.train(DONE).model
    assert [line["begin"] for line in place.lines] == ["first", "same-again"]
    assert [run.run_id[-2:] for run in place.bench.made] == ["-1", "-2", "-2"]


def test_a_kill_before_the_model_is_in_place_costs_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "remove", lambda _: pytest.fail("killed"))
        with pytest.raises(BaseException, match="killed"):
            place.train(DONE)
    ended = place.train()
    assert ended.model
    assert len(place.bench.made) == 1


def test_a_file_of_the_run_is_named_where_the_user_has_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def contained(run: Run, folder: RunFolder, resolve: Callable[..., RunSpec] = resolve_run) -> RunSpec:
        spec = resolve(run, folder)
        container = Container("image", 1, 1, str(folder.new_work.path), data=("/home/me/es.csv",))
        return replace(spec, intent=spec.intent.model_copy(update={"container": container.plain}))

    monkeypatch.setitem(globals(), "WORDS", "vpoc: /work/output/bars_checkpoints/step-1.pt: is not of /data/es.csv")
    monkeypatch.setattr(f"{__name__}.resolve_run", contained)
    with pytest.raises(UserError, match=f"^{place.job.output}/bars_checkpoints/step-1.pt: is not of /home/me/es.csv$"):
        place.train(Script(class_="user-code", exit="exit 2"))


@pytest.mark.parametrize(("steps", "left"), [((), False), ((20,), True), (None, True)])
def test_of_a_training_that_the_app_refused_its_words_are_reported_and_nothing_is_left_to_continue(
    place: Place, steps: tuple[int, ...] | None, left: bool
) -> None:
    with pytest.raises(UserError, match=r"^something is wrong with the data$"):
        place.train(Script(class_="user-code", exit="exit 2", accounted=steps))
    assert (place.file.unfinished_other("another") is not None) == left
    assert (place.file.read("key") is not None) == left


def test_of_a_training_that_was_refused_before_it_began_nothing_is_left_to_continue(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("63 sessions are needed")

    monkeypatch.setattr(Pretending, "data_of", refuse)
    with pytest.raises(UserError, match="63 sessions"):
        place.train()
    assert not place.file.file.exists()


def test_an_engine_that_is_gone_is_not_the_trainings_fault(place: Place) -> None:
    with pytest.raises(UserError, match="the same command continues"):
        place.train(Script("interrupted", None, step=20))
    assert place.train(DONE).model
    assert resumed_at(place.bench.made[-1]) == 20


def test_wrong_numbers_are_never_resumed_from(place: Place) -> None:
    wrong = Script(class_="wrong-result", step=58, exit="exit 0", with_result=True)
    place.train(Script(step=20), wrong, Script(step=25), DONE)
    assert [resumed_at(run) for run in place.bench.made] == [0, 20, 20, 25]
    assert [line["step"] for line in place.lines] == [20, 0, 25, 58]


@pytest.mark.parametrize(
    "class_", ["wrong-result", "verification-failed", "work-folder", "model-damaged", "model-does-not-load"]
)
@pytest.mark.parametrize("with_result", [True, False])
def test_an_attempt_that_was_judged_wrong_hands_over_nothing(class_: str, with_result: bool, place: Place) -> None:
    place.train(Script(class_=class_, step=58, with_result=with_result), DONE)
    assert [resumed_at(run) for run in place.bench.made] == [0, 0]


def test_after_two_wrong_ones_in_a_row_it_begins_again(place: Place) -> None:
    wrong = Script(class_="verification-failed", step=58)
    place.train(Script(step=20), wrong, wrong, DONE)
    assert [resumed_at(run) for run in place.bench.made] == [0, 20, 20, 0]


def test_no_checkpoint_is_resumed_from_past_the_steps_that_progress_accounts_for(place: Place) -> None:
    place.train(Script(step=40, accounted=(39,)), Script(step=20, accounted=(20,)), Script(step=30, accounted=()), DONE)
    assert [resumed_at(run) for run in place.bench.made] == [0, 0, 20, 20]
    assert place.display.problems[-1] == (
        "the model was verified from step 20 on: other attempts made the steps before, which "
        "cannot be repeated for comparison; that they were made is known from progress alone"
    )


@pytest.mark.parametrize("name", ["../../bars.pt", "important.pt", "attempts.jsonl"])
def test_names_in_the_result_do_not_decide_what_is_written(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Pretending.result_of

    def lying(bench: Pretending, run: Run) -> Result:
        told = real(bench, run)
        return told.model_copy(update={"model": told.model.model_copy(update={"file": name}), "metadata_file": name})

    monkeypatch.setattr(Pretending, "result_of", lying)
    place.job.output.mkdir(parents=True, exist_ok=True)
    (place.job.output / "important.pt").write_text("of the user", encoding="utf-8")
    assert place.train(DONE).model
    assert (place.job.output / "bars.pt").read_text().startswith("of ")
    assert (place.job.output / "bars_metadata.json").is_file()
    assert (place.job.output / "important.pt").read_text() == "of the user"
    assert place.lines


def test_a_damaged_checkpoint_is_passed_over(place: Place) -> None:
    with pytest.raises(IndexError):
        place.train(Script(step=20), Script(step=30))
    checkpoints = Path(place.bench.results.folder_of(place.bench.made[1].run_id).work.output, "bars_checkpoints")
    (last,) = checkpoints.glob("step-000000030.*")
    last.write_bytes(last.read_bytes()[:-1])
    place.train(DONE)
    assert resumed_at(place.bench.made[-1]) == 20


def test_an_injected_fault_is_for_the_first_attempt_and_marks_all_that_follows_from_it(place: Place) -> None:
    place.job = replace(place.job, injected_fault="segv@35")
    assert place.train(Script(step=20), DONE).model
    assert [run.injected_fault for run in place.bench.made] == ["segv@35", "after segv"]
    commands = [resolve_run(run, RunFolder(place.job.output)).intent.commands["train"] for run in place.bench.made]
    assert ["--inject-fault" in command for command in commands] == [True, False]


def test_earlier_checkpoints_are_resumed_from_when_asked_and_kept_otherwise(place: Place) -> None:
    earlier = place.job.output / "bars_checkpoints"
    write_checkpoint(earlier, 58)
    write_checkpoint(place.job.output / "bars2_checkpoints", 99)
    job = place.job
    place.job = replace(job, resume=True)
    place.train(replace(DONE, step=87))
    assert resumed_at(place.bench.made[0]) == 58
    assert len(list(earlier.iterdir())) == 2
    place.job, place.state = job, new_state("key", "cpu-plain", None)
    place.train(replace(DONE, step=60))
    assert resumed_at(place.bench.made[1]) == 0
    assert len(list(earlier.iterdir())) == 1
    assert len(list(place.job.output.joinpath("bars_checkpoints.previous").iterdir())) == 2


def test_a_model_that_is_replaced_is_kept_with_its_metadata(place: Place) -> None:
    output = place.job.output
    output.mkdir(parents=True, exist_ok=True)
    (output / "bars.pt").write_bytes(b"weeks of work")
    (output / "bars_metadata.json").write_text("{}", encoding="utf-8")
    assert place.train(DONE).replaced == (output / "bars.previous.pt",)
    assert (output / "bars.previous.pt").read_bytes() == b"weeks of work"
    assert (output / "bars.previous_metadata.json").read_text(encoding="utf-8") == "{}"
    assert (output / "bars.pt").read_bytes() != b"weeks of work"


def test_other_options_are_not_resumed_from_checkpoints_whose_record_tells_theirs(place: Place) -> None:
    def refused(name: str = "bars", **options: Any) -> str | None:
        try:
            check_resumable(place.job.output, name, options_of(own_workload(options)), place.bench.results)
        except UserError as error:
            return str(error)
        return None

    assert refused() is None
    place.train(replace(DONE, step=100))
    assert refused(epochs=90, loader_workers=0) is None
    # What was left to the app may be what is named now; of it the app alone knows.
    assert refused(target="up_30", schedule="constant") is None
    assert refused(lookback=25) == (
        f"--resume: the checkpoints in {place.job.output} are of a training with --lookback 60, this one has "
        "--lookback 25; give the same, or leave --resume out to train from the beginning"
    )
    assert "--hidden-layers" in str(refused(hidden_layers="8,8"))
    assert "this one has --chunk-rows 9" in str(refused(chunk_rows=9))
    assert refused("others", lookback=25) is None
    # Nor where somebody has trained on since: then only the app knows.
    write_checkpoint(place.job.output / "bars_checkpoints", 120)
    assert refused(lookback=25) is None


def test_no_model_that_was_kept_is_replaced_by_a_later_one(place: Place) -> None:
    model = place.job.output / "bars.pt"
    kept: list[Path] = []
    for number in (1, 2, 3):
        model.parent.mkdir(exist_ok=True)
        model.write_text(f"model {number}", encoding="utf-8")
        model.with_name("bars_metadata.json").write_text(f"about {number}", encoding="utf-8")
        place.state = new_state("key", "cpu-plain", None)
        kept += place.train(DONE).replaced
    assert [one.name for one in kept] == ["bars.previous.pt", "bars.previous-2.pt", "bars.previous-3.pt"]
    assert [one.read_text(encoding="utf-8") for one in kept] == ["model 1", "model 2", "model 3"]
    about = [one.with_name(f"{one.stem}_metadata.json").read_text(encoding="utf-8") for one in kept]
    assert about == ["about 1", "about 2", "about 3"]
    # One that is kept already is not kept twice.
    model.write_text("model 2", encoding="utf-8")
    place.state = new_state("key", "cpu-plain", None)
    assert [one.name for one in place.train(DONE).replaced] == ["bars.previous-2.pt"]


def test_no_file_of_a_program_that_was_kept_is_replaced_by_a_later_one(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    folder, output = RunFolder(tmp_path / "run"), tmp_path / "out"
    written = tmp_path / "run" / "work" / WorkFolder.PROGRAM / "model.bin"
    written.parent.mkdir(parents=True)
    kept: list[Path] = []
    for content in "1234":
        written.write_text(content, encoding="utf-8")
        kept += publish_program(folder, make_record(), output)
    assert [one.name for one in kept] == ["model.previous.bin", "model.previous-2.bin", "model.previous-3.bin"]
    assert [one.read_text(encoding="utf-8") for one in kept] == ["1", "2", "3"]


def test_files_of_a_program_are_copied_with_so_many_holes_in_all(
    tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.training.own_program.MOST_HOLE_BYTES", 3 << 20)
    written = tmp_path / "run" / "work" / WorkFolder.PROGRAM
    written.mkdir(parents=True)
    for name in "ab":
        with (written / name).open("wb") as sparse:
            sparse.truncate(2 << 20)
    with pytest.raises(UserError, match=r"b: has 2097152 bytes, of which .* are holes; it is left there$"):
        publish_program(RunFolder(tmp_path / "run"), make_record(), tmp_path / "out")
    assert (tmp_path / "out" / "a").stat().st_size == 2 << 20


def test_earlier_checkpoints_survive_a_disk_that_is_full_when_the_new_ones_are_copied(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(place.job.output / "bars_checkpoints", 58)

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("harness.training.publish._copy", lambda *_: None)
        patch.setattr("harness.evidence.work_folder.copy_out", full)
        with pytest.raises(UserError, match="No space left"):
            place.train(replace(DONE, step=60))
    assert place.train().model
    kept = place.job.output / "bars_checkpoints.previous"
    assert [file.name[:14] for file in kept.iterdir()] == ["step-000000058"]


def test_a_model_that_found_no_room_is_copied_by_the_same_command(
    place: Place, tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = RunFolder(tmp_path / "run")
    written = tmp_path / "run" / "work" / WorkFolder.PROGRAM / "model.bin"
    written.parent.mkdir(parents=True)
    written.touch()
    said = r"No space left on device; free .*, then give the same command$"
    with monkeypatch.context() as patch:
        for module in ("own_program", "publish"):
            patch.setattr(f"harness.training.{module}.copy_out", full)
        with pytest.raises(UserError, match=said):
            publish_program(folder, make_record(), tmp_path / "out")
        with pytest.raises(UserError, match=said):
            place.train(DONE)
    assert place.train().model
    assert len(place.bench.made) == 1


def test_earlier_checkpoints_that_cannot_be_kept_end_it_with_a_line(place: Place) -> None:
    write_checkpoint(place.job.output / "bars_checkpoints", 58)
    (place.job.output / "bars_checkpoints.previous").write_text("somebody's file", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be kept as bars_checkpoints\.previous: .*; move it away"):
        place.train(replace(DONE, step=60))
    assert (place.job.output / "bars_checkpoints.previous").read_text(encoding="utf-8") == "somebody's file"


def test_a_model_that_is_kept_has_no_metadata_of_another(place: Place) -> None:
    output = place.job.output
    output.mkdir(parents=True, exist_ok=True)
    (output / "bars.pt").write_bytes(b"weeks of work")
    (output / "bars.previous_metadata.json").write_text("of the one before", encoding="utf-8")
    place.train(DONE)
    assert (output / "bars.previous.pt").is_file()
    assert not (output / "bars.previous_metadata.json").exists()


def test_models_are_never_in_memory_as_a_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.job.output.mkdir(parents=True)
    (place.job.output / "bars.pt").write_bytes(b"weeks of work")
    read_bytes = Path.read_bytes

    def no_model(file: Path) -> bytes:
        assert file.suffix != ".pt", file
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", no_model)
    assert place.train(DONE).replaced


def test_attempts_of_earlier_trainings_stay_in_the_file(place: Place) -> None:
    place.train(DONE)
    place.state = new_state("key", "cpu-plain", None)
    place.train(Script(), DONE)
    assert [line["attempt"] for line in place.lines] == [1, 1, 2]


def test_two_gpus_then_one_then_the_cpu(make_place: MakePlace, dual_host: HostFacts) -> None:
    place = make_place(dual_host, GPU_CELL, strategy="ddp")
    place.job = replace(place.job, allow_cpu=True)
    place.train(
        Script(class_="hang-collective", step=10),
        Script(class_="hang-collective"),
        Script(class_="hang-collective"),
        Script("host-fault", "unhealthy-gpu", unhealthy=(0,)),
        Script("host-fault", "unhealthy-gpu", unhealthy=(1,)),
        DONE,
    )
    assert [(run.cell.id, run.gpus, run.workload.strategy) for run in place.bench.made] == [
        (GPU_CELL, (0, 1), "ddp"),
        (f"{GPU_CELL}~no-p2p", (0, 1), "ddp"),
        (f"{GPU_CELL}~no-p2p", (0,), "single"),
        (f"{GPU_CELL}~no-p2p", (0,), "single"),
        (f"{GPU_CELL}~no-p2p", (1,), "single"),
        ("cpu-plain", (), "single"),
    ]
    assert [resumed_at(run) for run in place.bench.made] == [0, *[10] * 5]
    no_p2p = resolve_run(place.bench.made[1], RunFolder(place.job.output)).intent.variables["train"]
    assert no_p2p["NCCL_P2P_DISABLE"] == "1"
    # On one device the same gradients are added up.
    assert [run.workload.micro_batch_size for run in place.bench.made] == [None, None, *[32] * 4]
    assert {run.workload.batch_size for run in place.bench.made} == {64}


def test_the_cpu_takes_over_where_that_is_allowed_and_no_longer_than_that(
    make_place: MakePlace, dual_host: HostFacts
) -> None:
    place = make_place(dual_host.model_copy(update={"gpus": dual_host.gpus[:1]}), GPU_CELL)
    ended = place.train(Script(class_="missing-arch", step=10), *[Script(class_="missing-arch")] * 7)
    assert ended.model is None
    assert ended.exhausted
    assert "--allow-cpu" in ended.exhausted
    assert {run.cell.stack.accelerator for run in place.bench.made} == {"rocm"}
    job = place.job
    place.job = replace(job, allow_cpu=True)
    with pytest.raises(KeyboardInterrupt):
        place.train(Script(step=30, interrupt=True))
    assert (place.bench.made[-1].cell.stack.name, place.lines[-1]["begin"]) == ("cpu", "cpu")
    place.job = job
    assert place.train(DONE).model
    assert (place.bench.made[-1].cell.id, place.lines[-1]["begin"]) == (GPU_CELL, "by-hand")
    assert resumed_at(place.bench.made[-1]) == 30


def test_another_stack_resumes_what_the_first_one_cannot_train(
    make_place: MakePlace, dual_host: HostFacts, matrix: Matrix
) -> None:
    place = make_place(dual_host, GPU_CELL)
    other = matrix.cells["rocm6.2-torch2.5.1-plain"]
    place.job = replace(place.job, others=(other,))
    assert place.train(Script(step=10), *[Script()] * 7, DONE).model
    assert [run.cell.stack.name for run in place.bench.made] == [*["rocm6.3-torch2.9.1"] * 8, other.stack.name]
    assert (place.lines[-1]["begin"], resumed_at(place.bench.made[-1])) == ("other-stack", 10)
    # With the settings that were asked for.
    assert place.bench.made[-1].cell == other


def test_without_a_healthy_gpu_it_begins_on_the_cpu_where_that_is_allowed(
    make_place: MakePlace, dual_host: HostFacts, make_step: Callable[..., HealthStep]
) -> None:
    place = make_place(dual_host, GPU_CELL)
    append_steps(place.bench.results, [make_step(gpu=gpu, good=False, detail="gone") for gpu in (0, 1)])
    with pytest.raises(UserError, match="--allow-cpu"):
        place.train()
    place.file.remove()
    place.state = new_state("key", GPU_CELL, None)
    place.job = replace(place.job, allow_cpu=True)
    assert place.train(DONE).model
    assert [(run.cell.id, run.gpus) for run in place.bench.made] == [("cpu-plain", ())]


def test_a_gpu_that_was_unhealthy_before_is_not_trained_on(make_place: MakePlace, dual_host: HostFacts) -> None:
    place = make_place(dual_host, GPU_CELL)
    with pytest.raises(IndexError):
        place.train(Script("host-fault", "unhealthy-gpu", unhealthy=(0,)))
    assert place.bench.made[0].gpus == (0,)
    place.state = new_state("key", GPU_CELL, None)
    place.file.remove()
    place.train(DONE)
    assert place.bench.made[-1].gpus == (1,)
    alone = make_place(dual_host.model_copy(update={"gpus": dual_host.gpus[:1]}), GPU_CELL)
    with pytest.raises(UserError, match=r"too few GPUs are healthy \(GPU 0: gone\)"):
        alone.train(DONE)


def test_unhealthy_gpus_are_probed_again_each_time_a_training_is_called_for(
    make_place: MakePlace,
    dual_host: HostFacts,
    make_step: Callable[..., HealthStep],
    probed_again: Probes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = make_place(dual_host, GPU_CELL)
    append_steps(place.bench.results, [make_step(gpu=gpu, good=False, detail="gone") for gpu in (0, 1)])
    with pytest.raises(UserError, match=r"^too few GPUs are healthy \(GPU 0: gone; GPU 1: gone\)"):
        place.train()
    assert probed_again == [(0,), (1,)]

    def reset(run: Run, results: Results, *_: object) -> None:
        append_steps(results, [make_step(gpu=gpu, when="recheck") for gpu in run.gpus if gpu == 1])

    monkeypatch.setattr("harness.campaign.unhealthy.recheck", reset)
    assert place.train(DONE).model
    assert [run.gpus for run in place.bench.made] == [(1,)]


def test_on_a_cpu_no_gpu_is_probed(
    make_place: MakePlace, dual_host: HostFacts, make_step: Callable[..., HealthStep], probed_again: Probes
) -> None:
    place = make_place(dual_host)
    append_steps(place.bench.results, [make_step(good=False)])
    assert place.train(DONE).model
    assert probed_again == []


def fragmenting(minute: int, share: float) -> Progress:
    memory = {"rss_bytes": 1, "device_allocated_bytes": int((1 - share) * (8 << 30)), "device_reserved_bytes": 8 << 30}
    told = {"wall": 0.0, "monotonic": minute * 60.0, "rank": 0, "pid": 1, "phase": "step", "done": minute}
    rest: dict[str, Any] = {"total": None, "max_step_s": None, "loss": None, "gradient_norm": None}
    return Progress.model_validate({"schema": 2, **told, **rest, "memory": memory})


def test_memory_in_ever_more_pieces_is_given_back_by_a_fresh_process(
    make_place: MakePlace, dual_host: HostFacts
) -> None:
    place = make_place(dual_host, GPU_CELL)
    lines = [fragmenting(minute, 0.2 + minute / 200) for minute in range(60)]
    assert place.train(Script(step=20, lines=lines), DONE).model
    assert [(line["begin"], line["outcome"]) for line in place.lines] == [
        ("first", "interrupted"),
        ("planned-restart", "completed"),
    ]
    assert resumed_at(place.bench.made[1]) == 20
    assert place.bench.made[1].cell == place.job.cell
    assert "unused pieces rose from" in place.display.problems[0]


def test_nobody_else_trains_the_same_model_meanwhile(tmp_path: Path, host: HostFacts) -> None:
    results, output, link = Results(tmp_path / "results"), tmp_path / "TRAINING", tmp_path / "link"
    output.mkdir()
    link.symlink_to(output)
    with open_state_file(results, host, output, "bars"), open_state_file(results, host, output, "others"):
        for same in (output, link, tmp_path / "link/../TRAINING"):
            with pytest.raises(UserError, match="is being trained by another process"):
                open_state_file(results, host, same, "bars").__enter__()


def test_a_training_is_found_again_by_folder_and_name_and_question(tmp_path: Path, host: HostFacts) -> None:
    results, link = Results(tmp_path), tmp_path / "link"
    link.symlink_to(tmp_path)
    with open_state_file(results, host, tmp_path, "bars") as file:
        file.write(new_state("key", "cpu-plain", None))
        assert file.read("key")
        assert file.read("another question") is None
    with open_state_file(results, host, link, "bars") as file:
        assert file.read("key")
    with open_state_file(results, host, tmp_path, "others") as file:
        assert file.read("key") is None


def test_an_unfinished_training_waits_while_one_with_other_options_is_made_in_its_place(
    tmp_path: Path, host: HostFacts
) -> None:
    mine, other = (new_state(key, "cpu-plain", None).model_copy(update={"begins": ("first",)}) for key in "ab")
    with open_state_file(Results(tmp_path), host, tmp_path, "bars") as file:
        file.write(mine)
        assert file.unfinished_other("b") == mine
        file.write(other)
        assert (file.read("a"), file.read("b")) == (mine, other)
        file.remove()
        assert (file.read("a"), file.read("b")) == (mine, None)
        # Also while it is set aside.
        assert file.unfinished_other("b") == mine
        # One of which nothing was begun does not wait.
        file.write(new_state("c", "cpu-plain", None))
        file.write(mine)
        assert file.read("c") is None
        file.remove()
        assert file.read("a") is None
        assert file.unfinished_other("b") is None
        # What cannot be read is none that may be begun again.
        file.file.mkdir()
        with pytest.raises(OSError, match="no regular file"):
            file.read("a")
        assert unfinished_trainings(Results(tmp_path), host.machine) == []


def test_a_training_without_a_model_is_named_with_what_continues_it(tmp_path: Path, host: HostFacts) -> None:
    results, output = Results(tmp_path / "results"), tmp_path / "TRAINING"
    output.mkdir()
    about = {"begins": ("first", "same-again"), "machine": "mine", "output": str(output), "command": "matrix\ntrain"}
    mine, other = (new_state(key, "cpu-plain", None).model_copy(update=about) for key in "ab")
    with open_state_file(results, host, output, "bars") as file:
        file.write(mine)
        file.write(other.model_copy(update={"begins": ("first",)}))
    told = sorted(one.in_words for one in unfinished_trainings(results, "mine"))
    ways_out = [one.split("`")[1] for one in told]
    assert [re.sub(r"begun [-0-9]{10} [0-9:]{5}", "begun", one) for one in told] == [
        f"{output}: a training has no model yet (begun, {count}; `{way_out}` gives it up); "
        "this continues it: `matrix\\ntrain`"
        for count, way_out in zip(("1 attempt", "2 attempts"), ways_out, strict=True)
    ]
    assert unfinished_trainings(results, "another") == []
    with noted_under_way(results, "mine", "matrix train", file.file.stem):
        assert [one.state.id for one in unfinished_trainings(results, "mine")] == [mine.id]
    subprocess.run(ways_out[0], shell=True, check=True)
    assert [one.state.id for one in unfinished_trainings(results, "mine")] == [mine.id]
    output.rmdir()
    assert unfinished_trainings(results, "mine") == []
