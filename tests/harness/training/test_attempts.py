"""Tests of the list of attempts beside the model."""

import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

from harness.base.errors import NoSpaceError, UserError
from harness.evidence.outcome.diagnoses import WRONG, EndDiagnosis, ResultDiagnosis
from harness.training.attempts import ATTEMPTS_FILE, write_attempts
from harness.training.state import new_state


def test_trainings_that_write_to_one_folder_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    trainings = [new_state(f"key {number}", "cpu-plain", None) for number in range(8)]

    def write(number: int) -> None:
        for count in range(1, 6):
            attempts = [{"training": trainings[number].id, "attempt": attempt} for attempt in range(count)]
            write_attempts(tmp_path, trainings[number], attempts, print)

    with ThreadPoolExecutor(len(trainings)) as pool:
        list(pool.map(write, range(len(trainings))))
    lines = [json.loads(line) for line in (tmp_path / ATTEMPTS_FILE).read_text().splitlines()]
    kept = sorted((line["training"], line["attempt"]) for line in lines)
    assert kept == sorted((training.id, attempt) for training in trainings for attempt in range(5))
    assert [file.name for file in tmp_path.iterdir()] == [ATTEMPTS_FILE]


def test_a_folder_that_somebody_keeps_locked_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.training.attempts.LOCK_SECONDS", 0.0)
    held = os.open(tmp_path, os.O_RDONLY)
    # A user who may only read the folder can hold this lock.
    fcntl.flock(held, fcntl.LOCK_SH)
    other = '{"training": "of whoever has it locked"}\n'
    (tmp_path / ATTEMPTS_FILE).write_text(other)
    training, told = new_state("key", "cpu-plain", None), list[str]()
    write_attempts(tmp_path, training, [{"attempt": 1}], told.append)
    assert (tmp_path / ATTEMPTS_FILE).read_text() == other
    assert told == [
        f"{ATTEMPTS_FILE} lacks the last attempts: {tmp_path}: another process has locked it for 0 s; "
        f"`fuser {tmp_path}` names that process: end it"
    ]
    os.close(held)
    write_attempts(tmp_path, training, [{"attempt": 1}], told.append)
    assert (tmp_path / ATTEMPTS_FILE).read_text() == other + '{"attempt": 1}\n'


def test_a_full_disk_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise NoSpaceError("OUT/attempts.jsonl: cannot be written: No space left on device; free space")

    monkeypatch.setattr("harness.training.attempts.write_durably", full)
    told = list[str]()
    write_attempts(tmp_path, new_state("key", "cpu-plain", None), [{"attempt": 1}], told.append)
    assert told == [
        f"{ATTEMPTS_FILE} lacks the last attempts: OUT/attempts.jsonl: cannot be written: No space left on device; "
        "free space"
    ]
    # Before it begins, a folder that cannot be written to is worth an error.
    with pytest.raises(UserError, match="No space left"):
        write_attempts(tmp_path, new_state("key", "cpu-plain", None), [], told.append)


def test_of_every_diagnosis_it_is_said_whether_a_training_may_resume_from_it() -> None:
    """A new diagnosis belongs in WRONG if it means a wrong result; otherwise the run's checkpoints are used."""
    resumed_from = {"injected-fault", "memory-grows", "memory-limit", "missing-arch", "no-result", "not-begun"}
    resumed_from |= {"app-error", "crash", "disk-limit", "no-progress", "not-finite", "not-started", "out-of-memory"}
    resumed_from |= {"refused", "unhealthy-gpu", "time-limit", "unkillable"}
    assert sorted([*get_args(EndDiagnosis), *get_args(ResultDiagnosis)]) == sorted([*WRONG, *resumed_from])


def test_lines_that_are_none_of_ours_go(tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS_FILE).write_bytes(b'1\n[]\n\xff\n{"training": "other"}\n')
    write_attempts(tmp_path, new_state("key", "cpu-plain", None), [], print)
    assert (tmp_path / ATTEMPTS_FILE).read_text() == '{"training": "other"}\n'


@pytest.mark.parametrize("content", [b"\n" * (3 << 20), None])
def test_a_list_that_is_too_large_or_no_file_stays_as_it_is_and_ends_no_training(
    content: bytes | None, tmp_path: Path
) -> None:
    listed, told = tmp_path / ATTEMPTS_FILE, list[str]()
    if content:
        listed.write_bytes(content)
    else:
        listed.mkdir()
    write_attempts(tmp_path, new_state("key", "cpu-plain", None), [{"attempt": 1}], told.append)
    assert listed.is_dir() if content is None else listed.read_bytes() == content
    assert len(told) == 1
    assert told[0].startswith(f"{ATTEMPTS_FILE} lacks the last attempts: ")
    assert told[0].endswith("; move it away")


def test_a_number_that_is_none_in_a_line_of_another_training_ends_no_training(tmp_path: Path) -> None:
    other = '{"training": "other", "step": NaN}\n'
    (tmp_path / ATTEMPTS_FILE).write_text(other)
    write_attempts(tmp_path, new_state("key", "cpu-plain", None), [{"attempt": 1}], print)
    assert (tmp_path / ATTEMPTS_FILE).read_text() == other + '{"attempt": 1}\n'
