from collections.abc import Callable

import pytest

from harness.diagnosis.judge import OF_OUTCOMES
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import judge
from harness.matrix.cells import Matrix, Verdicts
from harness.report.build import by_diagnosis
from harness.report.sections.choice import which_cell
from harness.report.sections.failures import Failure, failures, what_fails
from tests.harness.report.synthetic import EXPLANATION

MakeRows = Callable[..., list[Row]]


def test_failures_are_counted_over_cells_the_most_frequent_first(make_rows: MakeRows) -> None:
    rows = [*make_rows("cpu-plain", 5, 1, "oom"), *make_rows("cpu-no-sdma", 0, 2), *make_rows("cpu-notes-stable", 0, 1)]
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    assert [(one.diagnosis, one.count, one.cells) for one in found] == [
        ("crash", 3, ("cpu-no-sdma", "cpu-notes-stable")),
        ("oom", 1, ("cpu-plain",)),
    ]
    sentences = what_fails(verdicts, found, {found[0].newest: EXPLANATION})
    assert sentences[0] == (
        "`crash`: 3 of 9 counted runs, in `cpu-no-sdma` and `cpu-notes-stable`. A kernel touched foreign memory. "
        "What helps: Serialise the kernels."
    )
    assert sentences[1].endswith(f"`matrix explain {found[1].newest}` searches for the cause.")
    (referred, _) = what_fails(
        verdicts, found, {found[0].newest: EXPLANATION.model_copy(update={"remedy": OF_OUTCOMES})}
    )
    assert " docs/running.md#outcomes" in referred
    of_a_file = EXPLANATION.model_copy(update={"cause": "progress-1.jsonl is of no rank", "remedy": "re-run it"})
    assert (
        " progress-1.jsonl is of no rank. What helps: Re-run it."
        in what_fails(verdicts, found, {found[0].newest: of_a_file})[0]
    )


@pytest.mark.parametrize("tried", ["no-sdma", "notes-no-sdma"])
def test_a_remedy_that_failed_in_the_same_way_is_named(make_rows: MakeRows, tried: str) -> None:
    rows = [*make_rows("cpu-plain", 0, 2), *make_rows(f"cpu-{tried}", 0, 1)]
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    explained = EXPLANATION.model_copy(update={"presets": ("debug-serialize", "no-sdma")})
    (sentence,) = what_fails(verdicts, found, {found[0].newest: explained})
    said = "What helps: Serialise the kernels."
    if tried == "no-sdma":
        said = "What often helps: Serialise the kernels. But tried here, with the same failure: `no-sdma`."
    assert sentence.endswith(said)


@pytest.mark.parametrize(
    ("gpus", "failed_too", "so", "said"),
    [
        ("[0, 1]", 0, "crash", " Tried on the same work: `cpu-no-sdma` passed 3 of 3 runs."),
        ("[0, 1]", 9, "crash", " Tried on the same work: `cpu-no-sdma` passed 3 of 12 runs."),
        ("[0, 1]", 1, "oom", " Tried on the same work: `cpu-no-sdma` passed 3 of 4 runs."),
        ("[0]", 0, "crash", ""),
    ],
)
def test_of_a_remedy_with_which_the_same_work_passed_it_is_said_how_often(
    make_rows: MakeRows, gpus: str, failed_too: int, so: str, said: str
) -> None:
    rows = [row._replace(gpus="[0, 1]") for row in make_rows("cpu-plain", 0, 2)]
    rows += [row._replace(gpus=gpus) for row in make_rows("cpu-no-sdma", 3)]
    rows += [row._replace(gpus=gpus) for row in make_rows("cpu-no-sdma", 0, failed_too, so)]
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    explained = EXPLANATION.model_copy(update={"presets": ("debug-serialize", "no-sdma")})
    of_crash = next(one for one in found if one.diagnosis == "crash")
    sentence = what_fails(verdicts, [of_crash], {of_crash.newest: explained})[0]
    assert sentence.endswith(f"What helps: Serialise the kernels.{said}")


@pytest.mark.parametrize(
    ("failed_on", "passed_on", "said"),
    [
        ("[1]", "[0]", True),
        ("[1]", "[1]", False),
        ("[0, 1]", "[0]", False),
        ("[1]", "[0, 1]", False),
        ("[]", "[]", False),
    ],
)
def test_failures_on_one_gpu_alone_are_said_with_the_passes_on_another(
    make_rows: MakeRows, failed_on: str, passed_on: str, said: bool
) -> None:
    passed = [row._replace(gpus=passed_on) for row in make_rows("cpu-plain", 3)]
    rows = passed + [row._replace(gpus=failed_on) for row in make_rows("cpu-plain", 0, 2)]
    verdicts = judge(rows, {}, Verdicts())
    told = " On GPU 1 alone: the same work never passed there, and passed 3 times on another GPU."
    (sentence,) = what_fails(verdicts, failures(verdicts, rows, count_runs(rows)), {})
    assert (f"in `cpu-plain`.{told}" in sentence) == said
    assert ("alone" in sentence) == said
    imported = [row._replace(imported=True) for row in rows]
    assert "alone" not in what_fails(verdicts, failures(verdicts, imported, count_runs(imported)), {})[0]


def test_a_gpu_on_which_the_work_passed_once_is_not_said_to_fail_alone(make_rows: MakeRows) -> None:
    passed = [
        row._replace(gpus=gpus) for row, gpus in zip(make_rows("cpu-plain", 3), ("[0]", "[0]", "[1]"), strict=True)
    ]
    rows = passed + [row._replace(gpus="[1]") for row in make_rows("cpu-plain", 0, 2)]
    verdicts = judge(rows, {}, Verdicts())
    (sentence,) = what_fails(verdicts, failures(verdicts, rows, count_runs(rows)), {})
    assert "alone" not in sentence


def test_large_numbers_of_failures_are_written_as_those_of_runs() -> None:
    (said,) = what_fails([], [Failure("crash", 1767, ("cpu-plain",), "r1", "cpu", "", "ended", 1200)], {})
    assert said.startswith("`crash`: 1,767 of 0 counted runs, in `cpu-plain`. The newest: ended (1,200 ended in")


def test_failures_of_one_diagnosis_that_have_two_causes_are_two(make_rows: MakeRows) -> None:
    rows = [row._replace(rule="illegal-access") for row in make_rows("cpu-plain", 0, 2)]
    rows += [row._replace(rule="missing-kernel") for row in make_rows("cpu-plain", 0, 1)]
    found = failures(judge(rows, {}, Verdicts()), rows, count_runs(rows))
    assert [(one.diagnosis, one.count, one.newest) for one in found] == [
        ("crash", 2, rows[1].run_id),
        ("crash", 1, rows[2].run_id),
    ]


@pytest.mark.parametrize(
    ("earlier", "quoted"),
    [
        (
            "exit 1: KeyError: 'a'",
            " The newest: exit 1: ImportError: x (2 ended in another way).",
        ),
        ("exit 2: ImportError: x", ""),
    ],
)
def test_of_one_cause_that_showed_itself_in_two_ways_the_newest_is_quoted(
    make_rows: MakeRows, earlier: str, quoted: str
) -> None:
    """Details that only differ in their numbers count as the same way."""
    rows = [row._replace(detail=earlier) for row in make_rows("cpu-plain", 0, 2)]
    rows += [row._replace(detail="exit 1: ImportError: x") for row in make_rows("cpu-plain", 0, 1)]
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    (sentence,) = what_fails(verdicts, found, {found[0].newest: EXPLANATION})
    assert sentence.startswith(
        f"`crash`: 3 of 3 counted runs, in `cpu-plain`.{quoted} A kernel touched foreign memory. "
    )
    quoting = EXPLANATION.model_copy(update={"cause": "it said exit 1: ImportError: x"})
    (sentence,) = what_fails(verdicts, found, {found[0].newest: quoting})
    assert sentence.count("ImportError") == 1
    assert ("(2 ended in another way): It said" in sentence) == bool(quoted)


def test_the_folders_of_two_runs_are_no_two_ways_and_what_is_cut_is_marked(make_rows: MakeRows) -> None:
    def sentence_about(details: list[str]) -> str:
        rows = [row._replace(detail=detail.format(row=row)) for row, detail in zip(failed, details, strict=True)]
        found = failures(judge(rows, {}, Verdicts()), rows, count_runs(rows))
        return what_fails(judge(rows, {}, Verdicts()), found, {found[0].newest: EXPLANATION})[0]

    failed = [row._replace(run_id=f"run-{name}") for row, name in zip(make_rows("cpu-plain", 0, 2), "ab", strict=True)]
    assert "another way" not in sentence_about(["no file /runs/{row.run_id}/train.py"] * 2)
    assert "xxx... (1 ended in another way)" in sentence_about(["exit 1", "x" * 500])


def test_what_never_failed_is_said(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 4)
    assert what_fails(judge(rows, {}, Verdicts()), [], {}) == ("Nothing failed in 4 counted runs.",)
    assert what_fails([], [], {}) == ("No run counts yet.",)


def test_stale_failures_are_not_counted(make_rows: MakeRows) -> None:
    rows = make_rows("cpu-plain", 0, 4)
    assert failures(judge(rows, {("cpu-plain", "process"): "another"}, Verdicts()), rows, count_runs(rows)) == []


def test_a_tag_of_another_scope_is_not_its(make_rows: MakeRows, matrix: Matrix) -> None:
    rows = make_rows("cpu-plain", 40)
    tags = {("cpu-plain", rows[0].environment_hash, "cpu-ddp-2"): "known-good-cpu-ddp-2"}
    verdicts = judge(rows, {}, Verdicts())
    assert "tag `known" not in which_cell(verdicts, matrix, tags, verdicts)[0]


def test_why_a_run_counts_as_failed_is_the_cause_where_nothing_explains_it(make_rows: MakeRows) -> None:
    (row,) = make_rows("cpu-plain", 0, 1)
    rows = [row._replace(outcome="interrupted", diagnosis=None, interrupted_by="term", device="cuda")]
    verdicts = judge(rows, {}, Verdicts())
    found = failures(verdicts, rows, count_runs(rows))
    assert [one.diagnosis for one in found] == ["session-ended"]
    (shown,) = by_diagnosis(found, {row.run_id: None})
    assert shown.cause == "TERM ended it, and the host was not shutting down"
    (sentence,) = what_fails(verdicts, found, {row.run_id: None})
    assert sentence.endswith(
        f"TERM ended it, and the host was not shutting down. `matrix explain {row.run_id}` says what to do."
    )
