from collections.abc import Callable
from itertools import chain

from harness.evidence.row import Row
from harness.evidence.verdicts.verdict import judge
from harness.matrix.cells import Verdicts
from harness.report.sections.notes import SHOWN, compare_notes, what_the_notes_changed

MakeRows = Callable[..., list[Row]]


def told(*rows: list[Row]) -> str:
    return " ".join(what_the_notes_changed(judge(list(chain(*rows)), {}, Verdicts())))


def test_without_a_control_nothing_was_tested(make_rows: MakeRows) -> None:
    assert told(make_rows("cpu-notes-stable", 9)).startswith("Not tested")
    assert told(make_rows("cpu-plain", 9)).startswith("Not tested")


def test_no_difference_is_an_answer(make_rows: MakeRows) -> None:
    said = told(make_rows("cpu-plain", 20), make_rows("cpu-notes-stable", 20))
    assert "No difference shown for `notes-stable` against `plain`" in said
    assert "too few runs" not in said


def test_too_few_runs_to_show_anything_are_said(make_rows: MakeRows) -> None:
    assert "too few runs to show even" in told(make_rows("cpu-plain", 2), make_rows("cpu-notes-stable", 2))


def test_a_difference_is_reported_with_its_direction(make_rows: MakeRows) -> None:
    better = told(make_rows("cpu-plain", 3, 17), make_rows("cpu-notes-stable", 20))
    assert "`notes-stable` completed more often than `plain` on `cpu`" in better
    assert "20 of 20 against 3 of 20" in better
    assert "less often" in told(make_rows("cpu-plain", 20), make_rows("cpu-notes-stable", 3, 17))


def test_only_what_is_alike_is_compared(make_rows: MakeRows) -> None:
    plain = make_rows("cpu-plain", 20, workload_hash="f" * 64)
    assert compare_notes(judge([*plain, *make_rows("cpu-notes-stable", 0, 20)], {}, Verdicts())) == []


def test_more_comparisons_need_a_clearer_difference(make_rows: MakeRows) -> None:
    plain, stable = make_rows("cpu-plain", 1, 4), make_rows("cpu-notes-stable", 6, 0)
    (alone,) = compare_notes(judge([*plain, *stable], {}, Verdicts()))
    beside = compare_notes(judge([*plain, *stable, *make_rows("cpu-notes-aggressive", 1, 4)], {}, Verdicts()))
    assert alone.shown
    assert max(one.p for one in beside if one.notes.preset == "notes-stable") > alone.p


def test_cpus_say_nothing_about_variables_of_rocm(make_rows: MakeRows) -> None:
    assert "says nothing about GPUs" in told(make_rows("cpu-plain", 9), make_rows("cpu-notes-stable", 9))


def test_stale_runs_are_compared_with_nothing(make_rows: MakeRows) -> None:
    rows = [*make_rows("cpu-plain", 0, 20), *make_rows("cpu-notes-stable", 20)]
    assert compare_notes(judge(rows, {("cpu-plain", "process"): "another"}, Verdicts())) == []


def test_many_differences_are_not_all_spelled_out(make_rows: MakeRows) -> None:
    rows = []
    for number in range(SHOWN + 2):
        rows += make_rows("cpu-plain", 0, 20, workload_hash=f"{number}" * 64)
        rows += make_rows("cpu-notes-stable", 20, workload_hash=f"{number}" * 64)
    said = what_the_notes_changed(judge(rows, {}, Verdicts(), pooled=False))
    assert sum("more often" in sentence for sentence in said) == SHOWN
    assert "A difference is shown in 2 more comparisons, of `notes-stable`." in said
