"""Tests of where an attempt at a program of the user's own begins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.files.program_files import TakenOver
from harness.evidence.files.run_files import Record
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.records import Results
from harness.matrix.programs import Program
from harness.training.own_program import is_mistaken, next_place, place_in_words
from tests.harness.report.synthetic import EXPLANATION

SAVED = "ckpt.pt"


@pytest.mark.parametrize(
    ("ended", "begins"),
    [
        ([("app-error", "python-exception")], SAVED),
        # Only a failure of the program itself may be due to its checkpoint.
        ([("app-error", "python-exception")] * 2, None),
        # The third attempt began from another one.
        ([("app-error", "python-exception")] * 3, SAVED),
        ([("app-error", "oom-gpu")] * 2, SAVED),
        ([("crash", "crash")] * 2, SAVED),
        ([("no-progress", "hang-backward")] * 2, SAVED),
        ([("app-error", "python-exception"), ("app-error", "oom-gpu"), ("app-error", "python-exception")], None),
        # The attempt after the two began without it already.
        ([("app-error", "python-exception")] * 2 + [("app-error", "oom-gpu")], SAVED),
    ],
)
def test_a_checkpoint_is_left_out_after_two_failures_that_it_may_have_caused(
    ended: list[tuple[str, str]],
    begins: str | None,
    tmp_path: Path,
    make_record: Callable[..., Record],
) -> None:
    results = Results(tmp_path / "results")
    program = Program.model_validate(
        {"command": "python train.py", "source": str(tmp_path), "checkpoint": "ckpt*.pt", "resume": "{checkpoint}"}
    )
    records = []
    for number, (diagnosis, class_) in enumerate(ended, 1):
        outcome = "hung" if diagnosis == "no-progress" else "failed"
        record = make_record(f"t-train-{number}", outcome, diagnosis, program=program)
        record = record.model_copy(update={"explanation": EXPLANATION.model_copy(update={"class_": class_})})
        results.begin(record.intent)
        records.append(record)
    written = Path(results.folder_of(records[-1].intent.run_id).work.program)
    written.mkdir(parents=True)
    (written / SAVED).write_text("a night of work")
    place = next_place(program, records, results)
    assert place is not None
    assert (place.checkpoint, place.left_out) == (begins, () if begins else (SAVED,))


@pytest.mark.parametrize("resumes", [True, False])
def test_what_ends_without_a_result_is_tried_again_only_where_it_resumes(
    resumes: bool, tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    """From its beginning it would end in the same way, after as long."""
    program = Program.model_validate(
        {"command": "python train.py", "source": str(tmp_path), "checkpoint": "ckpt*.pt" if resumes else None}
    )
    record = make_record("t-train-1", "failed", "no-result", program=program)
    assert is_mistaken(record, Results(tmp_path).folder_of("t-train-1")) is not resumes


def test_a_pattern_of_checkpoints_that_no_file_matches_is_named(tmp_path: Path) -> None:
    program = Program.model_validate({"command": "python train.py", "source": str(tmp_path), "checkpoint": "out/*.pt"})
    work = WorkFolder(tmp_path)
    assert place_in_words(program, TakenOver(work, None, ())) == (
        "from the beginning: no file matches --checkpoint 'out/*.pt'"
    )
    assert place_in_words(program, TakenOver(work, None, ("out/1.pt",))) == "from the beginning"
    assert place_in_words(program, None) == "from the beginning"
