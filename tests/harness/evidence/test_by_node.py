from collections.abc import Iterable

from benchmarks.verdicts import ROW
from harness.evidence.by_node import NodeRuns, by_node, worst_node
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs


def rows(node: str | None, passed: int, failed: int, kind: str = "k") -> Iterable[Row]:
    for number in range(passed + failed):
        outcome = "completed" if number < passed else "failed"
        yield ROW._replace(run_id=f"{node}-{kind}-{number}", node=node, host_kind=kind, outcome=outcome, ran_on="a GPU")


def shown(*groups: Iterable[Row]) -> list[NodeRuns]:
    everything = [row for group in groups for row in group]
    return by_node(everything, count_runs(everything, []))


def test_a_node_that_fails_more_often_than_the_others_of_its_kind_is_told_apart() -> None:
    found = shown(rows("n1", 20, 0), rows("n2", 19, 1), rows("n3", 1, 5), rows(None, 0, 9))
    assert [(one.node, one.runs, one.failures, one.unlike_others) for one in found] == [
        ("n1", 20, 0, False),
        ("n2", 20, 1, False),
        ("n3", 6, 5, True),
    ]
    assert found[2].in_words == "n3 does it: 5 of its 6 runs failed, and 1 of 40 on the others of its kind"


def test_what_all_nodes_do_is_none_of_one_of_them() -> None:
    assert not any(one.unlike_others for one in shown(rows("n1", 2, 4), rows("n2", 2, 5), rows("n3", 1, 5)))


def test_another_kind_is_nothing_to_compare_with() -> None:
    assert not any(one.unlike_others for one in shown(rows("n1", 0, 6), rows("n2", 30, 0, kind="other")))


def test_controls_go_where_a_cell_failed_most() -> None:
    everything = [*rows("n1", 2, 1), *rows("n2", 0, 2), *rows("n3", 3, 0)]
    assert worst_node(everything, ROW.cell) == "n2"
    assert worst_node(everything, "another") is None
