from collections.abc import Callable

import pytest

from harness.evidence.index import Row
from harness.evidence.run_files import EvidenceLine, Explanation
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import judge
from harness.matrix.cells import Verdicts
from harness.report.choice import Tags, best_by_scope, which_cell
from harness.report.failures import failures, what_fails
from harness.report.next_steps import what_next

MakeRows = Callable[..., list[Row]]
EXPLANATION = Explanation(
    rule="x",
    class_="kernel-fault",
    cause="a kernel touched foreign memory",
    remedy="serialise the kernels",
    link=None,
    presets=("debug-serialize",),
    lines=(EvidenceLine(file="log.txt", line=1, text="boom"),),
)


def test_failures_are_counted_over_cells_the_most_frequent_first(make_rows: MakeRows) -> None:
    rows = [*make_rows("cpu-plain", 5, 1, "oom"), *make_rows("cpu-no-sdma", 0, 2), *make_rows("cpu-notes-stable", 0, 1)]
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    assert [(one.diagnosis, one.count, one.cells) for one in found] == [
        ("crash", 3, ("cpu-no-sdma", "cpu-notes-stable")),
        ("oom", 1, ("cpu-plain",)),
    ]
    said = what_fails(verdicts, found, {found[0].newest: EXPLANATION})
    assert said[0] == (
        "`crash`: 3 of 9 counted runs, in `cpu-no-sdma` and `cpu-notes-stable`. A kernel touched foreign memory. "
        "What helps: Serialise the kernels."
    )
    assert said[1].endswith(f"`matrix explain {found[1].newest}` searches for the cause.")


def test_what_never_failed_is_said(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 4)
    assert what_fails(judge(rows, {}, Verdicts()), [], {}) == ("Nothing failed in 4 counted runs.",)
    assert what_fails([], [], {}) == ("No run counts yet.",)


def test_stale_failures_are_not_counted(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 0, 4)
    assert failures(judge(rows, {("cpu-plain", "process"): "another"}, Verdicts()), rows, count_runs(rows)) == []


CELLS = ("cpu-plain", "cpu-debug-serialize")


def commands(rows: list[Row], explained: bool = False, tags: Tags | None = None) -> list[str]:
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    explanations = {one.newest: EXPLANATION for one in found} if explained else {}
    return [step.command for step in what_next(best_by_scope(verdicts), found, explanations, tags or {}, CELLS)]


def test_the_next_command_is_the_first_run_then_more_runs_then_training(make_rows: MakeRows) -> None:
    assert commands([]) == ["make matrix-test"]
    assert commands(make_rows("cpu-plain", 2)) == [".venv/bin/matrix run --until known-good"]
    assert commands(make_rows("cpu-plain", 40)) == ["make train DATA=merged.csv OUTPUT=TRAINING CELL=cpu-plain"]


def test_an_image_that_earned_its_tag_is_promoted_first(make_rows: MakeRows) -> None:
    options = {"loop": "plain", "vpoc_path": "naive", "strategy": "single"}
    assert commands(make_rows("cpu-plain", 40, executor="docker", options=options)) == [
        ".venv/bin/matrix promote cpu-plain",
        "make train DATA=merged.csv OUTPUT=TRAINING",
    ]


def test_what_no_tag_can_be_earned_with_is_trained_by_name(make_rows: MakeRows) -> None:
    options = {"loop": "plain", "vpoc_path": "naive", "strategy": "single"}
    for rows in (make_rows("cpu-plain", 40, options=options), make_rows("cpu-plain", 40, executor="docker")):
        assert commands(rows) == ["make train DATA=merged.csv OUTPUT=TRAINING CELL=cpu-plain"]


def test_a_tag_that_stands_is_trained_with(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 40, executor="docker")
    tags = {("cpu-plain", rows[0].environment_hash, "cpu"): "known-good-cpu"}
    assert commands(rows, tags=tags) == ["make train DATA=merged.csv OUTPUT=TRAINING"]
    said = which_cell(judge(rows, {}, Verdicts()), Verdicts(), tags)
    assert "Its image has the tag `known-good-cpu`." in said[0]


def test_what_cannot_be_run_is_no_remedy(make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows("cpu-plain", 0, 2)
    monkeypatch.setitem(globals(), "CELLS", ("cpu-plain",))
    assert commands(rows, explained=True)[1:] == [f".venv/bin/matrix explain {rows[-1].run_id}"]


def test_what_failed_is_no_remedy_of_itself(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-debug-serialize", 0, 2)
    assert commands(rows, explained=True)[1:] == [f".venv/bin/matrix explain {rows[-1].run_id}"]


def test_a_tag_of_another_scope_is_not_its(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 40)
    tags = {("cpu-plain", rows[0].environment_hash, "cpu-ddp-2"): "known-good-cpu-ddp-2"}
    assert "tag `known" not in which_cell(judge(rows, {}, Verdicts()), Verdicts(), tags)[0]


def test_a_failure_is_explained_and_its_remedy_tried(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 0, 2)
    assert commands(rows, explained=True)[1:] == [
        f".venv/bin/matrix explain {rows[-1].run_id}",
        ".venv/bin/matrix run cpu-debug-serialize",
    ]
