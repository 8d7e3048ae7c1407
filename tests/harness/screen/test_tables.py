import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.verdict import judge
from harness.matrix.cells import Matrix, Verdicts
from harness.screen import tables
from harness.screen.colours import OUTCOME_COLOURS, TIER_COLOURS
from harness.screen.fitted import print_table


@pytest.fixture
def rows(make_record: Callable[..., Record]) -> list[Row]:
    passed = Row.of(make_record())
    return [
        passed._replace(samples_per_second=1234.0),
        passed._replace(run_id="r2", outcome="failed", diagnosis="crash", detail="ended with SIGSEGV"),
        passed._replace(run_id="r3", outcome="interrupted"),
    ]


def shown(table: Table, row: int = 0) -> dict[str, str]:
    """Return the text below each heading, with rich's markup if it is coloured."""
    below = {str(column.header): list(column.cells)[row] for column in table.columns}
    return {header: cell.markup if isinstance(cell, Text) else str(cell) for header, cell in below.items()}


def test_each_value_of_a_verdict_stands_below_its_heading(rows: list[Row]) -> None:
    """All numbers differ, so that none can be taken for another."""
    passed, failed, ended = rows
    passes = [passed._replace(run_id=f"p{n}", boot_id=f"boot {n % 3}") for n in range(5)]
    failures = [failed._replace(run_id=f"f{n}", boot_id="boot 0") for n in range(2)]
    (verdict,) = judge([*passes, *failures, ended._replace(boot_id="boot 0")], {}, Verdicts())
    assert shown(tables.verdicts_table([verdict])) == {
        "cell": "cpu-plain",
        "verdict": "[{0}]flaky[/{0}]".format(TIER_COLOURS["flaky"]),
        "passed": "5 of 7",
        "starts above": f"{floor(verdict.start_low * 100)} %",
        "trained": "8.0 h",
        "MTBF above": f"{floor(verdict.mtbf_low * 60)} min",
        "scope": "cpu, process",
        "note": "",
        "workload": "quick on merged.csv",
        "ran on": "cpu (a CPU) x1",
        "not counted": "1 interrupted",
        "why": "crash x2",
    }


def test_a_bound_is_that_of_the_report_where_its_float_is_a_little_less(rows: list[Row]) -> None:
    (verdict,) = judge(rows[:1], {}, Verdicts())
    assert shown(tables.verdicts_table([replace(verdict, start_low=0.29)]))["starts above"] == "29 %"


def test_what_was_interrupted_after_hours_is_untested_for_that_reason(rows: list[Row]) -> None:
    (verdict,) = judge(rows[2:], {}, Verdicts())
    assert shown(tables.verdicts_table([verdict]))["verdict"] == "[dim]untested[/dim] (interrupted)"
    (verdict,) = judge([rows[2]._replace(exposure_seconds=0.0)], {}, Verdicts())
    assert shown(tables.verdicts_table([verdict]))["verdict"] == "[dim]untested[/dim]"


def test_seconds_of_training_show_no_mtbf(rows: list[Row]) -> None:
    (verdict,) = judge([rows[0]._replace(exposure_seconds=2.0, ran_on="unknown")], {}, Verdicts())
    told = shown(tables.verdicts_table([verdict], here=verdict.host_kind))
    assert (told["trained"], told["MTBF above"], told["note"]) == ("2 s", "none yet", "")
    assert shown(tables.verdicts_table([verdict], here="x"))["note"] == "another kind of host"
    assert told["ran on"] == ""


def test_what_tells_two_verdicts_on_a_cell_apart_is_never_left_out(rows: list[Row]) -> None:
    (verdict,) = judge(rows, {}, Verdicts())
    other, moved = replace(verdict, workload="other"), replace(verdict, scope="two GPUs")
    contained = replace(verdict, executor="docker")
    cases = (([verdict], ()), ([verdict, other], ("workload",)), ([verdict, moved], ("scope",)))
    for verdicts, kept in (
        *cases,
        ([verdict, contained], ("scope",)),
        ([verdict, other, moved], ("workload", "scope")),
    ):
        assert tables.columns_to_leave_out(verdicts) == tuple(one for one in tables.OF_VERDICTS if one not in kept)


def test_each_value_of_a_run_stands_below_its_heading(rows: list[Row]) -> None:
    table = tables.runs_table(rows, count_runs(rows))
    assert shown(table) == {
        "run": "r1",
        "outcome": "[{0}]completed[/{0}]".format(OUTCOME_COLOURS["completed"]),
        "counts as": "passed",
        "why": "",
        "workload": "quick on merged.csv",
        "ran on": "cpu (a CPU) x1",
        "seconds": "5.0",
        "samples/s": "1234",
        "detail": "",
    }
    assert (shown(table, 1)["why"], shown(table, 1)["detail"]) == ("crash", "ended with SIGSEGV")
    assert shown(table, 1)["counts as"] == "failed"
    assert (shown(table, 2)["counts as"], shown(table, 2)["why"]) == ("hours only", "interrupted")
    assert shown(table, 2)["detail"] == "somebody or something ended it"
    unverified = [rows[0]._replace(verified=False)]
    assert shown(tables.runs_table(unverified, count_runs(unverified)))["counts as"] == "not verified"
    refused = [rows[1]._replace(diagnosis="refused", first_step=False, detail="no such option", ran_on="unknown")]
    told = shown(tables.runs_table(refused, count_runs(refused)))
    assert (told["detail"], told["ran on"]) == ("the app refused the command: no such option", "")


def test_a_narrow_terminal_shows_these_columns_and_as_many_others_as_fit(rows: list[Row]) -> None:
    """Every column is named here or in the tuple beside its table; otherwise a new one would not fit 80 columns."""
    (verdict,) = judge(rows, {}, Verdicts())
    always = {
        tables.OF_VERDICTS: (tables.verdicts_table([verdict]), {"cell", "verdict", "passed"}),
        tables.OF_RUNS: (tables.runs_table(rows, count_runs(rows)), {"run", "outcome"}),
        tables.OF_CELLS: (tables.cells_table([]), {"cell", "excluded because"}),
        tables.OF_WORKLOADS: (tables.workloads_table([], wide=False), {"workload", "what"}),
    }
    for others, (table, kept) in always.items():
        assert sorted([*others, *kept]) == sorted(str(column.header) for column in table.columns)


def in_80_columns(table: Table, leave_out: Sequence[str], text: str) -> tuple[str, str]:
    """Return the headings that a terminal of 80 columns shows, and what it says of those that it does not."""
    file = io.StringIO()
    print_table(Console(file=file, width=80, force_terminal=True, color_system=None), table, leave_out, text)
    shows, _, lacks = file.getvalue().partition("(not shown: ")
    return " ".join(shows.splitlines()[0].split()), " ".join(lacks.partition(";")[0].split())


def test_what_a_terminal_of_80_columns_shows(rows: list[Row]) -> None:
    """A new column shows in one of these lines; if it pushes out another one, it is too wide or too high up."""
    (verdict,) = judge(rows, {}, Verdicts())
    here = replace(verdict, cell="cpu-plain", scope="cpu")
    long = replace(verdict, cell="rocm10.0.0-torch2.13.0-notes-stable", scope="gfx1100-ddp-2", executor="docker")
    found = [in_80_columns(tables.verdicts_table([one]), tables.OF_VERDICTS, "why") for one in (here, long)]
    assert found == [
        ("cell verdict passed starts above MTBF above scope why", "trained, workload, ran on, not counted"),
        ("cell verdict passed scope", "starts above, trained, MTBF above, workload, ran on, not counted, why"),
    ]
    run = "20261120T203015Z-4f5a6b-rocm6.3-torch2.9.1-plain"
    row = rows[1]._replace(run_id=run, detail="ended with SIGSEGV in a kernel of hipBLASLt")
    table = tables.runs_table([row], count_runs([row]))
    assert in_80_columns(table, tables.OF_RUNS, "detail") == (
        "run outcome counts as why",
        "workload, ran on, seconds, samples/s, detail",
    )


def test_runs_on_different_data_are_told_apart_where_there_is_room(rows: list[Row]) -> None:
    different = [row._replace(data=name) for row, name in zip(rows, ("synthetic", "merged.csv"), strict=False)]
    table = tables.runs_table(different, count_runs(different))
    assert [shown(table, at)["workload"] for at in (0, 1)] == ["quick on synthetic", "quick on merged.csv"]
    assert tables.run_columns_to_leave_out(rows) == tables.OF_RUNS
    assert tables.run_columns_to_leave_out(different)[-4:] == ("detail", "workload", "counts as", "why")
    verdicts = judge([row._replace(family=row.run_id) for row in different], {}, Verdicts())
    (together,) = judge(different, {}, Verdicts())
    assert ([one.data for one in verdicts], together.data) == (["synthetic", "merged.csv"], "synthetic, merged.csv")


def test_a_plan_names_its_data(matrix: Matrix) -> None:
    quick = matrix.workloads["quick"]
    assert tables.data_line(quick, Path("/home/me/merged.csv")) == "  data: merged.csv"
    made = f"synthetic bars of {quick.synthetic.sessions} sessions, made here"
    assert tables.data_line(quick, None) == f"  data: {made}"


def test_a_row_has_a_cell_for_every_column() -> None:
    """A column that is added only to the head or only to the rows would shift the values below the headings."""
    made = tables._table("cell", "verdict")
    made.add_row("cpu-plain", "good")
    for cells in (("cpu-plain",), ("cpu-plain", "good", "new")):
        with pytest.raises(ValueError, match="for the columns cell, verdict"):
            made.add_row(*cells)


def test_a_workload_whose_name_has_a_megabyte_is_cut(rows: list[Row]) -> None:
    """All other rows would be padded to that width: two hundred runs took six gigabytes."""
    long = rows[0]._replace(workload="w" * 1_000_000)
    assert len(shown(tables.runs_table([long], count_runs([long])))["workload"]) == tables.LONGEST_CELL
