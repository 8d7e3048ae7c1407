"""Tests of the stages of a matrix file, and of what is refused when the file is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.matrix.stages import endurance, exploring, of_winner

Write = Callable[[str], Path]


def test_the_own_matrix_goes_from_the_doctor_to_the_users_criteria(matrix: Matrix) -> None:
    assert list(matrix.stages) == [
        "doctor",
        "smoke",
        "one-gpu",
        "two-gpus",
        "endurance",
        "immediate",
        "full",
        "production",
    ]
    assert [stage.name for stage in exploring(matrix.stages)] == ["smoke", "one-gpu", "two-gpus"]
    assert [stage.name for stage in of_winner(matrix.stages)] == ["immediate", "full", "production"]
    lasting = endurance(matrix.stages)
    assert lasting is not None
    assert lasting.until == "good"


def test_where_collectives_fail_each_way_around_them_is_tried_in_order(matrix: Matrix) -> None:
    presets = ("no-p2p", "no-peer-sdma", "fine-grain-pcie", "no-sdma")
    changes = [{"preset": one} for one in presets] + [{"strategy": one} for one in ("averaging", "model-parallel")]
    # Without `after:`, a change is tried whatever failed.
    assert [one.model_dump(exclude_none=True) for one in matrix.stages["two-gpus"].otherwise] == changes
    assert matrix.stages["two-gpus"].beside == ("dp",)


def test_a_failed_vpoc_phase_is_tried_again_in_other_ways_from_smoke_on(matrix: Matrix) -> None:
    for stage in (matrix.stages["smoke"], matrix.stages["one-gpu"]):
        ways = [one.vpoc_path for one in stage.otherwise if one.after == "features"]
        assert ways == ["chunked", "preallocated", "cpu"]


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("{description: a, workload: qick, enters: selection}", "unknown workload 'qick'; did you mean quick?"),
        ("{description: a, workload: quick}", "give `enters: selection`"),
        ("{description: a, workload: quick, enters: selecton}", "did you mean selection?"),
        ("{description: a, workload: quick, enters: selection, device: one}", "did you mean devices?"),
        (
            "{description: a, workload: quick, enters: selection, otherwise: [{preset: plan}]}",
            "unknown name 'plan'; did you mean plain?",
        ),
        ("{description: a, workload: quick, enters: selection, otherwise: [{}]}", "changes nothing"),
        (
            "{description: a, workload: quick, enters: selection, otherwise: [{sdpa: math}, {sdpa: math}]}",
            "lists the same twice",
        ),
        (
            "{description: a, workload: quick, enters: selection, otherwise: [{strategy: ddp}]}",
            "a strategy of several devices needs `devices: all`",
        ),
        ("{description: a, workload: quick, enters: selection, devices: all}", "needs a strategy of several devices"),
        ("{description: a, workload: quick, enters: best}", "a stage of the best has `until:`, and no other has"),
        ("{name: x, description: a, workload: quick, enters: selection}", "the key above is the name"),
    ],
)
def test_a_mistake_is_reported_where_it_is(write_matrix: Write, stage: str, said: str) -> None:
    file = write_matrix(f"stages:\n  first: {stage}\n")
    text = file.read_text()
    place = 1 + text.splitlines().index(f"  first: {stage}")
    with pytest.raises(UserError, match="stages") as refused:
        load_matrix(file)
    assert said in str(refused.value)
    assert f"{file}:{place}:" in str(refused.value)


PROGRAM = (
    "workloads:\n  quick: {description: small, synthetic: {sessions: 30}, epochs: 1, time_limit: 60}\n"
    "  mine: {description: mine, time_limit: 60, program: {command: x, source: .}}\n"
)


def test_no_cell_is_chosen_by_a_program_of_the_users_own(write_matrix: Write) -> None:
    file = write_matrix(f"{PROGRAM}stages:\n  first: {{description: a, workload: mine, enters: selection}}\n")
    with pytest.raises(UserError, match="a program of your own: cells are chosen by checked numbers"):
        load_matrix(file)


def test_what_is_good_may_run_one(write_matrix: Write) -> None:
    stages = "  first: {description: a, workload: quick, enters: selection}\n"
    stages += "  mine: {description: b, workload: mine, enters: winner}\n"
    assert load_matrix(write_matrix(f"{PROGRAM}stages:\n{stages}")).stages["mine"].workload == "mine"


def test_hours_of_another_family_would_not_count(write_matrix: Write) -> None:
    file = write_matrix(
        "workloads:\n"
        "  quick: {description: small, synthetic: {sessions: 30}, epochs: 1, time_limit: 60}\n"
        "  long: {description: more, synthetic: {sessions: 90}, epochs: 9, time_limit: 60}\n"
        "  other: {description: more, synthetic: {sessions: 90}, epochs: 9, batch_size: 8, time_limit: 60}\n"
    )
    stages = (
        "stages:\n  first: {{description: a, workload: quick, enters: selection}}\n"
        "  last: {{description: b, workload: {0}, enters: best, until: good}}\n"
    )
    content = file.read_text()
    file.write_text(content + stages.format("long"))
    assert load_matrix(file).stages["last"].workload == "long"
    file.write_text(content + stages.format("other"))
    with pytest.raises(UserError, match=r"stages.last.workload: its workload differs from that of first"):
        load_matrix(file)
