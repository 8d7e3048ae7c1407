"""Tests of what a training leaves (a model, checkpoints, a program's files) beside what was there before."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.run.requested_run import Run
from harness.training.attempts import ATTEMPTS_FILE
from harness.training.own_program import publish_program
from harness.training.publish import place_to_keep
from harness.training.state import new_state
from tests.harness.training.scripted_attempts import (
    DONE,
    Script,
    ScriptedAttemptsBench,
    TrainingUnderTest,
    resumed_at,
    write_checkpoint,
)


@pytest.mark.parametrize("name", ["../../bars.pt", "important.pt", "attempts.jsonl"])
def test_names_in_the_result_do_not_decide_what_is_written(
    name: str, training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ScriptedAttemptsBench.result_of

    def lying(bench: ScriptedAttemptsBench, run: Run) -> Result:
        told = real(bench, run)
        return told.model_copy(update={"model": told.model.model_copy(update={"file": name}), "metadata_file": name})

    monkeypatch.setattr(ScriptedAttemptsBench, "result_of", lying)
    training.job.output.mkdir(parents=True, exist_ok=True)
    (training.job.output / "important.pt").write_text("of the user", encoding="utf-8")
    assert training.train(DONE).model
    assert (training.job.output / "bars.pt").read_text().startswith("of ")
    assert (training.job.output / "bars_metadata.json").is_file()
    assert (training.job.output / "important.pt").read_text() == "of the user"
    assert training.lines


def test_earlier_checkpoints_are_resumed_from_when_asked_and_kept_otherwise(training: TrainingUnderTest) -> None:
    earlier = training.job.output / "bars_checkpoints"
    write_checkpoint(earlier, 58)
    write_checkpoint(training.job.output / "bars2_checkpoints", 99)
    job = training.job
    training.job = replace(job, resume=True)
    training.train(Script(accounted=()), replace(DONE, step=87))
    assert [resumed_at(run) for run in training.bench.made] == [58, 58]
    assert [line["why"].rpartition("from ")[2] for line in training.lines] == ["the last checkpoint"] * 2
    assert training.display.problems[0].endswith("; next: the same again, from the last checkpoint")
    assert training.display.notices[0].startswith("the model was verified from step 58 on: ")
    assert len(list(earlier.iterdir())) == 2
    training.job, training.state = job, new_state("key", "cpu-plain", None)
    training.train(replace(DONE, step=60))
    assert resumed_at(training.bench.made[2]) == 0
    assert len(list(earlier.iterdir())) == 1
    assert len(list(training.job.output.joinpath("bars_checkpoints.previous").iterdir())) == 2


def test_a_model_that_is_replaced_is_kept_with_what_belongs_to_it(training: TrainingUnderTest) -> None:
    output = training.job.output
    output.mkdir(parents=True, exist_ok=True)
    (output / "bars.pt").write_bytes(b"weeks of work")
    (output / "bars_metadata.json").write_text("{}", encoding="utf-8")
    (output / "bars_curves.csv").write_text("of steps", encoding="utf-8")
    (output / "bars_predictions.csv").write_text("of weeks", encoding="utf-8")
    assert training.train(DONE).replaced == (output / "bars.previous.pt",)
    assert (output / "bars.previous.pt").read_bytes() == b"weeks of work"
    assert (output / "bars.previous_metadata.json").read_text(encoding="utf-8") == "{}"
    assert (output / "bars.previous_curves.csv").read_text(encoding="utf-8") == "of steps"
    # Beside the new model, the old predictions would pass for those of the new one.
    assert (output / "bars.previous_predictions.csv").read_text(encoding="utf-8") == "of weeks"
    assert not (output / "bars_predictions.csv").exists()
    assert (output / "bars.pt").read_bytes() != b"weeks of work"


def test_where_a_model_is_kept_already_its_predictions_follow(training: TrainingUnderTest) -> None:
    """This comes about by a kill between the two moves, or if the kept model was put back and used again."""
    output = training.job.output
    output.mkdir(parents=True, exist_ok=True)
    for model in ("bars.pt", "bars.previous.pt"):
        (output / model).write_bytes(b"weeks of work")
    (output / "bars_predictions.csv").write_text("of weeks", encoding="utf-8")
    (output / "bars.previous_metadata.json").write_text("of weeks", encoding="utf-8")
    # That of the new model is copied before the model.
    (output / "bars_metadata.json").write_text("of the new model", encoding="utf-8")
    assert training.train(DONE).replaced == (output / "bars.previous.pt",)
    assert (output / "bars.previous_predictions.csv").read_text(encoding="utf-8") == "of weeks"
    assert (output / "bars.previous_metadata.json").read_text(encoding="utf-8") == "of weeks"
    assert not (output / "bars_predictions.csv").exists()


def test_no_model_that_was_kept_is_replaced_by_a_later_one(training: TrainingUnderTest) -> None:
    model = training.job.output / "bars.pt"
    kept: list[Path] = []
    for number in (1, 2, 3):
        model.parent.mkdir(exist_ok=True)
        model.write_text(f"model {number}", encoding="utf-8")
        model.with_name("bars_metadata.json").write_text(f"about {number}", encoding="utf-8")
        training.state = new_state("key", "cpu-plain", None)
        kept += training.train(DONE).replaced
    assert [one.name for one in kept] == ["bars.previous.pt", "bars.previous-2.pt", "bars.previous-3.pt"]
    assert [one.read_text(encoding="utf-8") for one in kept] == ["model 1", "model 2", "model 3"]
    about = [one.with_name(f"{one.stem}_metadata.json").read_text(encoding="utf-8") for one in kept]
    assert about == ["about 1", "about 2", "about 3"]
    # A model that is kept already is not kept twice.
    model.write_text("model 2", encoding="utf-8")
    training.state = new_state("key", "cpu-plain", None)
    assert [one.name for one in training.train(DONE).replaced] == ["bars.previous-2.pt"]


def test_a_pipe_or_a_folder_where_a_model_would_be_kept_is_left_alone(tmp_path: Path) -> None:
    model, pipe, folder = (tmp_path / name for name in ("bars.pt", "bars.previous.pt", "bars.previous-2.pt"))
    model.write_text("of last week", encoding="utf-8")
    os.mkfifo(pipe)
    folder.mkdir()
    # Whatever waits for a writer of the pipe gets one, so that it fails and does not hang.
    with os.fdopen(os.open(pipe, os.O_RDWR), "wb") as writer:
        threading.Timer(5, writer.close).start()
        assert place_to_keep(model).name == "bars.previous-3.pt"
        assert not writer.closed


def test_no_file_of_a_program_that_was_kept_is_replaced_by_a_later_one(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    folder, output = RunFolder(tmp_path / "run"), tmp_path / "out"
    written = tmp_path / "run" / "work" / WorkFolder.PROGRAM / "model.bin"
    written.parent.mkdir(parents=True)
    # The program wrote a folder to the place of the harness's list of attempts.
    (written.parent / ATTEMPTS_FILE).mkdir()
    (written.parent / ATTEMPTS_FILE / "x").touch()
    output.mkdir()
    (output / ATTEMPTS_FILE).touch()
    kept: list[Path] = []
    for content in "1234":
        written.write_text(content, encoding="utf-8")
        kept += publish_program(folder, make_record(), output)
    assert [one.name for one in kept] == ["model.previous.bin", "model.previous-2.bin", "model.previous-3.bin"]
    assert [one.read_text(encoding="utf-8") for one in kept] == ["1", "2", "3"]


def test_no_file_of_a_program_is_written_through_a_link_out_of_the_users_folder(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    folder, output = RunFolder(tmp_path / "run"), tmp_path / "out"
    written = tmp_path / "run" / "work" / WorkFolder.PROGRAM / "keys" / "more"
    written.mkdir(parents=True)
    (written / "authorized").write_text("of a stranger", encoding="utf-8")
    (tmp_path / "elsewhere" / "more").mkdir(parents=True)
    output.mkdir()
    # A link that somebody else packed into the folder, which the user unpacked.
    (output / "keys").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r": leads out of .*/out; remove that link"):
        publish_program(folder, make_record(), output)
    assert list((tmp_path / "elsewhere" / "more").iterdir()) == []
    # A folder that is itself a link is what the user named.
    (output / "keys").unlink()
    (tmp_path / "named").symlink_to(output)
    publish_program(folder, make_record(), tmp_path / "named")
    assert (output / "keys" / "more" / "authorized").read_text(encoding="utf-8") == "of a stranger"


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


def test_many_files_of_a_program_are_copied_with_a_word_and_what_is_interrupted_goes_on(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    written, output = tmp_path / "run" / "work" / WorkFolder.PROGRAM, tmp_path / "out"
    written.mkdir(parents=True)
    for number in range(150):
        (written / f"{number:03}").touch()
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_program(RunFolder(tmp_path / "run"), make_record(), output, tell)
    assert sorted(one.name for one in output.iterdir()) == [f"{number:03}" for number in range(100)]
    assert publish_program(RunFolder(tmp_path / "run"), make_record(), output, tell) == ()
    assert [text.partition(": ")[2] for text in said] == ["0 of 150 files", "100 of 150 files"] * 2
    assert len(list(output.iterdir())) == 150


def test_earlier_checkpoints_survive_a_disk_that_is_full_when_the_new_ones_are_copied(
    training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(training.job.output / "bars_checkpoints", 58)

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("harness.training.publish._copy", lambda *_: None)
        patch.setattr("harness.evidence.files.work_folder.copy_out", full)
        with pytest.raises(UserError, match="No space left"):
            training.train(replace(DONE, step=60))
    assert training.train().model
    kept = training.job.output / "bars_checkpoints.previous"
    assert [file.name[:14] for file in kept.iterdir()] == ["step-000000058"]


def test_a_model_that_found_no_room_is_copied_by_the_same_command(
    training: TrainingUnderTest, tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
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
            training.train(DONE)
    assert training.train().model
    assert len(training.bench.made) == 1


def test_earlier_checkpoints_that_cannot_be_kept_end_it_with_a_line(training: TrainingUnderTest) -> None:
    write_checkpoint(training.job.output / "bars_checkpoints", 58)
    (training.job.output / "bars_checkpoints.previous").write_text("somebody's file", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be kept as bars_checkpoints\.previous: .*; move it away"):
        training.train(replace(DONE, step=60))
    assert (training.job.output / "bars_checkpoints.previous").read_text(encoding="utf-8") == "somebody's file"


def test_a_model_that_is_kept_has_no_metadata_of_another(training: TrainingUnderTest) -> None:
    output = training.job.output
    output.mkdir(parents=True, exist_ok=True)
    (output / "bars.pt").write_bytes(b"weeks of work")
    (output / "bars.previous_metadata.json").write_text("of the one before", encoding="utf-8")
    training.train(DONE)
    assert (output / "bars.previous.pt").is_file()
    assert not (output / "bars.previous_metadata.json").exists()


def test_models_are_never_in_memory_as_a_whole(training: TrainingUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    training.job.output.mkdir(parents=True)
    (training.job.output / "bars.pt").write_bytes(b"weeks of work")
    read_bytes = Path.read_bytes

    def no_model(file: Path) -> bytes:
        assert file.suffix != ".pt", file
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", no_model)
    assert training.train(DONE).replaced
