import shlex
from collections.abc import Callable
from typing import Any

import pytest

from harness.evidence.files.run_files import Intent
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import REFUSED, count_runs
from harness.evidence.verdicts.recommend import most_useful
from harness.evidence.verdicts.verdict import judge
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix, Verdicts
from harness.matrix.workload_options import OWN_DATA
from harness.registry.tags.promote import claims_of, missing_of
from harness.report.invocation import Invocation
from harness.report.sections.choice import Tags, which_cell
from harness.report.sections.failures import failures
from harness.report.sections.next_steps import OF_OTHER_DATA, training_meanwhile, what_next
from tests.harness.report.synthetic import EXPLANATION

MakeRows = Callable[..., list[Row]]
OF_MANY = [f"cpu-{preset}" for preset in ("no-sdma", "no-p2p", "one-queue", "no-hipblaslt", "miopen-fast")]
HERE = Invocation("matrix", ("--results", "my results", "--root", "/tmp/host"))
PLACE = "matrix --results 'my results' --root /tmp/host"
OWN: dict[str, Any] = {
    "data": {"path": "/home/me/my bars.csv", "sha256": "a" * 64},
    "options": {"loop": "plain", "vpoc_path": "naive", "strategy": "single", "lookback": 25},
}
ASKED = "--executor process --lookback 25 --data '/home/me/my bars.csv'"
Commands = Callable[..., list[str]]


@pytest.fixture
def commands(matrix: Matrix, make_intent: Callable[..., Intent]) -> Commands:
    def made(
        rows: list[Row],
        explained: bool = False,
        tags: Tags | None = None,
        cells: tuple[str, ...] = ("cpu-plain", "cpu-debug-serialize"),
        **intent: Any,
    ) -> list[str]:
        verdicts = judge(rows, {}, Verdicts())
        found = failures(verdicts, rows, count_runs(rows))
        explanations = {one.newest: EXPLANATION for one in found} if explained else {}
        intents = {row.run_id: make_intent(row.run_id, **{"workload": row.workload, **intent}) for row in rows}
        own = judge([row for row in rows if not row.imported], {}, Verdicts())
        steps = what_next(most_useful(verdicts), found, explanations, tags or {}, cells, intents, matrix, HERE, own)
        return [step.command for step in steps]

    return made


def test_before_the_first_run_it_is_that(commands: Commands) -> None:
    assert commands([]) == [f"{PLACE} run"]


@pytest.mark.parametrize("path", ["<data>", "/home/me/my bars.csv"])
def test_bars_that_stayed_on_another_host_are_asked_for(
    make_rows: MakeRows, matrix: Matrix, make_intent: Callable[..., Intent], path: str
) -> None:
    data = {"path": path, "sha256": "a" * 64}
    for rows in (make_rows("cpu-plain", 2), make_rows("cpu-plain", 0, 2)):
        verdicts = judge(rows, {}, Verdicts())
        found = failures(verdicts, rows, count_runs(rows))
        explained = {one.newest: EXPLANATION for one in found}
        intents = {row.run_id: make_intent(row.run_id, data=data) for row in rows}
        cells = ("cpu-debug-serialize",)
        step = what_next(most_useful(verdicts), found, explained, {}, cells, intents, matrix, HERE, verdicts)[0]
        assert " run cpu-" in step.command
        assert not found or step.why.startswith(f"tries a preset that may help against `{found[0].diagnosis}`")
        assert step.why.endswith(OF_OTHER_DATA) == (path == "<data>")
        assert ("--data" in step.command) == (path != "<data>")


def test_a_failure_is_explained_first_where_no_run_names_a_cell(
    make_rows: MakeRows, matrix: Matrix, commands: Commands
) -> None:
    rows = make_rows("cpu-plain", 0, 1)
    found = failures(judge(rows, {}, Verdicts()), rows, count_runs(rows))
    told = what_next(None, found, {}, {}, (), {}, matrix, HERE, ())
    assert [one.command for one in told] == [f"{PLACE} explain {rows[0].run_id}", f"{PLACE} run"]


def test_a_refused_command_is_explained_before_it_is_given_again(make_rows: MakeRows, commands: Commands) -> None:
    rows = [row._replace(diagnosis=REFUSED, first_step=False) for row in make_rows("cpu-plain", 0, 2)]
    assert commands(rows) == [f"{PLACE} explain {rows[-1].run_id}", f"{PLACE} run"]
    interrupted = make_rows("cpu-no-sdma", 0, 1)[0]._replace(
        outcome="interrupted", diagnosis=None, interrupted_by="ctrl-c", started=rows[-1].started + 1
    )
    assert commands([*rows, interrupted]) == [f"{PLACE} run"]


@pytest.mark.parametrize(
    ("cell", "runs", "may", "other"),
    [
        ("cpu-plain", 1, True, False),
        ("cpu-plain", 5, True, True),
        ("cpu-plain", 16, False, False),
        ("host-plain", 5, False, False),
    ],
)
def test_before_enough_is_shown_one_may_train_all_the_same(
    make_rows: MakeRows,
    matrix: Matrix,
    make_intent: Callable[..., Intent],
    cell: str,
    runs: int,
    *,
    may: bool,
    other: bool,
) -> None:
    """A good cell is left to `what_next`, and `matrix train` cannot use an interpreter of the user's own.

    `other`: only another run than those of the best cell knows the user's bars.
    """
    rows = make_rows(cell, runs, **OWN)
    best = most_useful(judge(rows, {}, Verdicts()))
    of_best = {"data": {"path": "synthetic-100-8-abcdef012345.csv", "sha256": "a" * 64}} if other else OWN
    intents = {run_id: make_intent(run_id, **kept) for run_id, kept in (("other", OWN), (rows[-1].run_id, of_best))}
    told = training_meanwhile(best, intents, {}, matrix, HERE)
    assert (told is not None) == may
    if told:
        assert told.command == (
            f"{PLACE} train --data '/home/me/my bars.csv' --output TRAINING --cell cpu-plain --executor process "
            "--lookback 25"
        )
    assert training_meanwhile(None, {}, {}, matrix, HERE) is None


def test_more_runs_have_the_cell_data_lookback_and_a_workload_that_counts(
    make_rows: MakeRows, commands: Commands
) -> None:
    until = f"{PLACE} run cpu-plain --until known-good --workload"
    assert commands(make_rows("cpu-plain", 2, smoke_test=True, **OWN), **OWN) == [f"{until} standard {ASKED}"]
    rows = make_rows("cpu-plain", 2, workload="soak", **OWN)
    assert commands(rows, **OWN) == [f"{until} soak {ASKED}"]


def test_more_runs_are_not_offered_where_none_was_verified(make_rows: MakeRows, commands: Commands) -> None:
    none, later = make_rows("cpu-plain", 2, verifier=None, **OWN), make_rows("cpu-plain", 3, **OWN)
    assert commands(none, **OWN) == [f"{PLACE} status cpu-plain"]
    assert "--until" in commands([*none, *later[2:]], **OWN)[0]


def test_after_runs_of_uncommitted_changes_it_runs_again_and_is_no_search_without_end(
    make_rows: MakeRows, commands: Commands, matrix: Matrix
) -> None:
    rows = make_rows("cpu-plain", 40, executor="docker", revision=f"{'c' * 40}-dirty", workload="soak", **OWN)
    (again,) = commands(rows, **{**OWN, "executor": "docker"})
    assert again.startswith(f"{PLACE} run cpu-plain --workload soak ")
    assert "--until" not in again
    assert training_meanwhile(most_useful(judge(rows, {}, Verdicts())), {}, {}, matrix, HERE) is None


def test_the_page_says_what_the_next_command_takes(make_rows: MakeRows, matrix: Matrix, commands: Commands) -> None:
    for smoke_test in (True, False):
        rows = make_rows("cpu-plain", 1, smoke_test=smoke_test, **OWN)
        verdicts = judge(rows, {}, matrix.verdicts)
        (step,) = what_next(most_useful(verdicts), [], {}, {}, (), {}, matrix, HERE, verdicts)
        takes = step.why.removeprefix("runs this cell until it is known-good: if nothing fails, after ")
        assert takes.startswith("33 more starts" if smoke_test else "32 more starts")
        assert f"Without a failure, {takes}" in which_cell(verdicts, matrix, {}, verdicts)[0]


def test_next_asks_for_what_promotion_of_the_best_of_many_asks_for(
    make_rows: MakeRows, matrix: Matrix, commands: Commands
) -> None:
    """This also holds for a cell with enough runs to be known-good if it had been tried alone."""
    tried = [*OF_MANY, "cpu-plain"]
    for runs in (20, 40):
        rows = [
            row
            for cell in tried
            for row in make_rows(cell, runs if cell == "cpu-plain" else 1, executor="docker", **OWN)
        ]
        verdicts = judge(rows, {}, matrix.verdicts)
        own = next(one for one in verdicts if one.cell == "cpu-plain")
        claims = claims_of(verdicts, {row.run_id: row for row in rows}, count_runs(rows))
        missing = missing_of(next(one for one in claims if one.verdict is own), matrix.verdicts)
        step = what_next(own, [], {}, {}, (), {}, matrix, HERE, verdicts)[-1]
        assert "--until known-good" in step.command
        assert step.why == (
            f"runs this cell until it is known-good: if nothing fails, after {missing.in_words} "
            f"(the best of {len(tried)} that were tried is held to more)"
        )
        # Alone, it would have to show 33 starts.
        assert missing.starts > 33 - runs


def test_what_is_known_good_is_trained_with_on_the_bars_it_was_tried_with(
    make_rows: MakeRows, commands: Commands
) -> None:
    (command,) = commands(make_rows("cpu-plain", 40, **OWN), **OWN)
    assert command == (
        f"{PLACE} train --data '/home/me/my bars.csv' --output TRAINING --cell cpu-plain --executor process "
        "--lookback 25"
    )
    synthetic = {"data": {"path": "/cache/synthetic-100-7-abcdef012345.csv", "sha256": "a" * 64}}
    (command,) = commands(make_rows("cpu-plain", 40, **synthetic), **synthetic)
    assert shlex.split(command)[5:9] == ["train", "--data", "merged.csv", "--output"]
    # `matrix train` has no option to name an interpreter of the user's own.
    assert commands(make_rows("host-plain", 40, **OWN), **OWN) == [f"{PLACE} status host-plain"]


def test_an_image_that_qualifies_is_promoted_first_and_then_found_by_it(
    make_rows: MakeRows, commands: Commands
) -> None:
    rows = make_rows("cpu-plain", 40, executor="docker", **OWN)
    promote, train = commands(rows, **OWN, executor="docker")
    assert promote == f"{PLACE} promote cpu-plain"
    assert "--cell cpu-plain" in train
    tags = {("cpu-plain", rows[0].environment_hash, "cpu"): "known-good-cpu"}
    (train,) = commands(rows, tags=tags, **OWN, executor="docker")
    assert train == f"{PLACE} train --data '/home/me/my bars.csv' --output TRAINING --lookback 25"


@pytest.mark.parametrize("of_here", [0, 5])
def test_no_promotion_is_named_that_rests_on_imported_runs(
    of_here: int, make_rows: MakeRows, commands: Commands
) -> None:
    rows = make_rows("cpu-plain", 40, executor="docker", **OWN)
    imported = [row._replace(imported=True) for row in rows[of_here:]]
    first = commands([*rows[:of_here], *imported], **OWN, executor="docker")[0]
    assert first.startswith(f"{PLACE} run cpu-plain --until known-good")


def test_a_training_of_two_devices_keeps_its_strategy(make_rows: MakeRows, commands: Commands) -> None:
    two: dict[str, Any] = {"options": {"strategy": "ddp", "devices": 2}}
    (command,) = commands(make_rows("cpu-plain", 40, **two), **two)
    assert "--strategy ddp" in command


def test_where_nothing_works_a_remedy_comes_before_the_evidence(make_rows: MakeRows, commands: Commands) -> None:
    rows = make_rows("cpu-plain", 0, 2)
    assert commands(rows, explained=True, **OWN) == [
        f"{PLACE} run cpu-debug-serialize --workload quick {ASKED}",
        f"{PLACE} explain {rows[-1].run_id}",
    ]


def test_a_record_of_the_stack_host_may_have_no_command(make_rows: MakeRows, commands: Commands) -> None:
    for none in ({}, {"train": ()}):
        bare: dict[str, Any] = {**OWN, "stack": "host", "commands": none}
        assert "--python" not in " ".join(commands(make_rows("cpu-plain", 0, 2, **OWN), explained=True, **bare))


def test_what_cannot_be_run_or_failed_itself_is_no_remedy(make_rows: MakeRows, commands: Commands) -> None:
    rows = make_rows("cpu-plain", 0, 2)
    assert commands(rows, explained=True, cells=("cpu-plain",)) == [f"{PLACE} explain {rows[-1].run_id}"]
    rows = make_rows("cpu-debug-serialize", 0, 2)
    assert commands(rows, explained=True) == [f"{PLACE} explain {rows[-1].run_id}"]
    rows = [*make_rows("cpu-debug-serialize", 0, 1, diagnosis="no-result"), *make_rows("cpu-plain", 0, 2)]
    assert commands(rows, explained=True) == [f"{PLACE} explain {rows[-1].run_id}"]


def test_a_command_can_be_typed_as_printed(make_rows: MakeRows, commands: Commands) -> None:
    (command,) = commands(make_rows("cpu-plain", 2, workload="soak", **OWN), **OWN)
    words = shlex.split(command)
    assert words[words.index("--results") + 1] == "my results"
    assert words[words.index("--data") + 1] == "/home/me/my bars.csv"


def test_what_stages_changed_is_kept_or_left_to_them(
    make_rows: MakeRows, commands: Commands, dual_host: HostFacts
) -> None:
    changed = {"strategy": "ddp", "devices": 2, "vpoc_path": "preallocated", "lookback": 25}
    two: dict[str, Any] = {
        **OWN, "options": changed, "workload": "standard", "host": dual_host, "device": "cuda", "gpus": (0, 1)
    }  # fmt: skip
    # `matrix run` has no option to ask for ddp.
    assert commands(make_rows("cpu-plain", 2, **two), **two) == [f"{PLACE} run {ASKED}"]
    (train,) = commands(make_rows("cpu-plain", 16, **two), **two)
    assert train == (
        f"{PLACE} train --data '/home/me/my bars.csv' --output TRAINING --cell cpu-plain --executor process "
        "--strategy ddp --vpoc-path preallocated --lookback 25"
    )
    # Nor has it one for a training, which has no workload.
    for work in (two, {**two, "workload": OWN_DATA}):
        failed = make_rows("cpu-plain", 0, 2, **work)
        assert commands(failed, explained=True, **work) == [f"{PLACE} explain {failed[-1].run_id}"]
    # A preset that an explanation suggests may work without the change of the workload, which did not help.
    alone: dict[str, Any] = {**OWN, "options": {**OWN["options"], "vpoc_path": "cpu"}, "workload": "standard"}
    failed = make_rows("cpu-plain", 0, 2, **alone)
    assert commands(failed, explained=True, **alone) == [
        f"{PLACE} run cpu-debug-serialize --workload standard {ASKED}",
        f"{PLACE} explain {failed[-1].run_id}",
    ]


def test_what_is_good_on_a_gpu_is_trained_with_before_it_is_run_on(
    make_rows: MakeRows, commands: Commands, dual_host: HostFacts
) -> None:
    one: dict[str, Any] = {**OWN, "workload": "soak", "host": dual_host, "device": "cuda", "gpus": (0,)}
    train, on = commands(make_rows("cpu-plain", 16, **one), **one)
    assert "train --data" in train
    assert "--until known-good --workload soak" in on


def test_commands_in_a_text_get_the_options_once() -> None:
    text = HERE.in_text("read `matrix explain r1`")
    assert HERE.in_text(text) == text == "read `matrix --results 'my results' --root /tmp/host explain r1`"
