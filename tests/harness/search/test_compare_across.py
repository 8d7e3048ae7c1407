"""Tests of comparing a cell's runs from before a change of its host with those after it."""

from collections.abc import Callable

import pytest
from scipy.stats import fisher_exact

from harness.evidence.files.run_files import Record
from harness.evidence.host_state import HostState
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.rates import lower_bound
from harness.search.compare_across import AcrossComparison, Axis, compare_across

OLD = HostState("6.12", "in-tree", {"GPU 0 mes": "0x82"}, {"VBIOS of GPU 0": "A", "amdgpu.mes": "0", "iommu": "pt"})
NEW = OLD._replace(kernel="6.18")
MakeRuns = Callable[..., list[Row]]


@pytest.fixture
def runs(make_record: Callable[..., Record]) -> MakeRuns:
    """Return a function that makes `runs` runs in a state of their host, of which the first `passes` passed."""
    made = Row.of(make_record())

    def make(state: HostState, passes: int, runs: int, at: float = 0.0, **changes: object) -> list[Row]:
        each = {"host_state": state.as_json, "started": at, **changes}
        return [
            made._replace(run_id=f"{at}-{n}-{changes}", outcome="completed" if n < passes else "failed", **each)  # type: ignore[arg-type]
            for n in range(runs)
        ]

    return make


def across(axis: Axis, *rows: list[Row], cells: tuple[str, ...] = ()) -> list[AcrossComparison]:
    every = [row for some in rows for row in some]
    return compare_across(every, count_runs(every), axis, cells, 0.95)


def test_the_newest_value_is_compared_with_the_one_before(runs: MakeRuns) -> None:
    (one,) = across("kernel", runs(NEW, 3, 9, 1.0), runs(OLD, 20, 20))
    assert (one.before.value, one.before.passes, one.before.runs) == ("6.12", 20, 20)
    assert (one.newest.value, one.newest.passes, one.newest.runs) == ("6.18", 3, 9)
    assert one.before.low == lower_bound(20, 20, 0.95)
    assert one.p_value == one.adjusted == fisher_exact([[20, 0], [3, 6]]).pvalue
    assert one.differ
    assert one.also_changed == ()
    said = one.in_words
    assert said.startswith("cpu-plain: 6.12: 20 of 20; 6.18: 3 of 9 (")
    assert said.endswith("): they differ, p = 0.00018")


def test_what_else_changed_is_said(runs: MakeRuns) -> None:
    newer = NEW._replace(firmware={"GPU 0 mes": "0x83"}, settings={**OLD.settings, "amdgpu.mes": "1"})
    (one,) = across("kernel", runs(OLD, 20, 20), runs(newer, 3, 9, 1.0))
    assert one.also_changed == ("firmware", "parameters")
    assert one.in_words.endswith("; firmware and parameters changed too, which may be the cause")


@pytest.mark.parametrize(
    ("axis", "changes", "before", "newest"),
    [
        ("driver", {"driver": "6.14"}, "in-tree", "6.14"),
        ("firmware", {"firmware": {"GPU 0 mes": "0x83"}}, "GPU 0 mes 0x82", "GPU 0 mes 0x83"),
        ("firmware", {"settings": {**OLD.settings, "VBIOS of GPU 0": "B"}}, "VBIOS of GPU 0 A", "VBIOS of GPU 0 B"),
        (
            "parameters",
            {"settings": {"VBIOS of GPU 0": "A", "amdgpu.mes": "1"}},
            "amdgpu.mes 0, iommu pt",
            "amdgpu.mes 1, iommu not set",
        ),
    ],
)
def test_a_value_is_what_differs(
    axis: Axis, changes: dict[str, object], before: str, newest: str, runs: MakeRuns
) -> None:
    (one,) = across(axis, runs(OLD, 5, 5), runs(OLD._replace(**changes), 5, 5, 1.0))  # type: ignore[arg-type]
    assert (one.before.value, one.newest.value) == (before, newest)
    assert not one.differ


@pytest.mark.parametrize(
    "changes",
    [{"workload_hash": "w"}, {"executor": "docker"}, {"scope": "gfx1100"}, {"machine": "m"}, {"environment_hash": "e"}],
)
def test_only_what_was_run_alike_is_compared(changes: dict[str, object], runs: MakeRuns) -> None:
    assert across("kernel", runs(OLD, 20, 20), runs(NEW, 3, 9, 1.0, **changes)) == []
    assert len(across("kernel", runs(OLD, 20, 20, **changes), runs(NEW, 3, 9, 1.0, **changes))) == 1


def test_several_comparisons_are_corrected_for_and_cells_can_be_chosen(runs: MakeRuns) -> None:
    middle = OLD._replace(kernel="6.15")
    plain = [*runs(OLD, 20, 20), *runs(middle, 15, 20, 1.0), *runs(NEW, 9, 20, 2.0)]
    other = [row._replace(run_id=f"other-{row.run_id}", cell="cpu-no-sdma") for row in plain]
    both = across("kernel", plain, other)
    assert [(one.cell, one.before.value, one.newest.value) for one in both] == [
        (cell, before, "6.18") for cell in ("cpu-no-sdma", "cpu-plain") for before in ("6.12", "6.15")
    ]
    alone = across("kernel", plain, other, cells=("cpu-plain",))
    assert [one.cell for one in alone] == ["cpu-plain"] * 2
    assert both[0].adjusted == pytest.approx(4 * both[0].p_value)
    assert alone[0].adjusted == pytest.approx(2 * alone[0].p_value)


def test_what_does_not_count_is_left_out(runs: MakeRuns) -> None:
    struck = runs(OLD, 0, 5, 0.5, struck="a power cut")
    (one,) = across("kernel", runs(OLD, 20, 20), struck, runs(NEW, 3, 9, 1.0))
    assert (one.before.passes, one.before.runs) == (20, 20)
