"""Tests of what a campaign shows: the live view on a terminal, lines elsewhere."""

import io
import re
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
from rich.console import Console

from harness.base.interrupts import interruptible
from harness.campaign.bench.plan import PlannedRun
from harness.evidence.files.run_files import Explanation, Record
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Matrix
from harness.report.invocation import Invocation
from harness.run.watch.watchdog import RankStall
from harness.screen import display as screen_display
from harness.screen import live_scene
from harness.screen.display import CampaignDisplay, StallLines
from harness.screen.live import expected_end
from tests.harness.screen.recorded import NOW, a_line, a_verdict, console_of, printed


def test_a_stall_is_worth_a_line_after_a_minute_and_each_time_it_doubles() -> None:
    lines = StallLines()
    assert [s for s in range(600) if lines.worth(s)] == [60, 120, 240, 480]
    assert [s for s in range(100) if lines.worth(s)] == [60]
    late = StallLines()
    assert [late.worth(300), late.worth(301), late.worth(480)] == [True, False, True]


def campaign(
    console: Console, matrix: Matrix, record: Record, verdicts: Callable[[], Sequence[Verdict]] = tuple
) -> CampaignDisplay:
    """Show the first of two runs, which stalls for about a minute; return the display."""
    cell = matrix.cells["cpu-plain"]
    with CampaignDisplay(console, [cell, matrix.cells["cpu-no-sdma"]], verdicts) as display:
        display.preparing(cell.stack)
        display.time_left(120.0)
        display.started(PlannedRun(cell, 2), 1, 2)
        display.progress(a_line(wall=time.time()))
        for seconds in (5.0, 61.0, 62.0):
            display.stalled(RankStall(0, "step", 30, seconds, 180.0))
        if console.is_terminal:
            wait_for(console, "no progress for 62 s")
        display.finished(record)
        if console.is_terminal:
            wait_for(console, "1 of 2 runs")
    return display


def wait_for(console: Console, text: str) -> None:
    """Wait until the console shows a text; a terminal is redrawn twice a second."""
    until = time.monotonic() + 30
    while text not in printed(console):
        assert time.monotonic() < until, printed(console)
        time.sleep(0.05)


def test_without_a_terminal_there_are_only_lines(matrix: Matrix, make_record: Callable[..., Record]) -> None:
    console = console_of(terminal=False)

    def never() -> Sequence[Verdict]:
        raise AssertionError("nothing shows them")

    campaign(console, matrix, make_record(detail="all is right"), never)
    # Each line begins with the time, which is cut off here.
    assert [line.partition(" ")[2] for line in printed(console).splitlines()] == [
        "[1/2] cpu-plain (run 2): no progress for 61 s in phase step (limit 180 s)",
        "[1/2] cpu-plain (run 2): completed in 5.0 s, cpu (a CPU) x1: all is right",
    ]


def test_on_a_terminal_the_view_follows_the_events(matrix: Matrix, make_record: Callable[..., Record]) -> None:
    console, known = console_of(terminal=True), [a_verdict()]
    campaign(console, matrix, make_record(detail="all is right"), lambda: known)
    text = printed(console)
    assert "3/3 seen" in text
    assert "no progress for 62 s in phase step (limit 180 s)" in text
    assert re.search(r"0 of 2 runs, \d s in all, about 2 min left", text)
    assert "1 of 2 runs" in text
    assert "[1/2] cpu-plain (run 2): completed" in text
    assert "\x1b[2K" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_view_is_not_redrawn_while_a_line_above_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrawn in between, with fewer lines than before, the view would let the line overwrite those before it."""
    monkeypatch.setattr(live_scene, "REFRESHES_PER_SECOND", 100)
    console, drawn = console_of(terminal=True), list[bool]()

    def print_slowly(*_: object) -> None:
        before = console.file.getvalue()  # type: ignore[attr-defined]
        time.sleep(0.2)
        drawn.append(console.file.getvalue() != before)  # type: ignore[attr-defined]

    monkeypatch.setattr(screen_display, "print_stamped", print_slowly)
    with CampaignDisplay(console) as display:
        wait_for(console, " in all")
        display.log("it ended")
    assert drawn == [False]


def test_a_view_shows_what_a_signal_is_answered_with_as_a_line_in_it_would_move_it_and_leaves_it_behind(
    capfd: pytest.CaptureFixture[str],
) -> None:
    console = console_of(terminal=True)
    with interruptible(), CampaignDisplay(console) as display:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        wait_for(console, " in all, ending what is running, one moment")
        display.log("it ended")
        before, _, after = printed(console).partition("\rending what is running, one moment\n")
        assert "it ended" not in before
        assert "it ended" in after
        signal.raise_signal(signal.SIGINT)
    assert printed(console).endswith("\rstill ending the running processes, one moment\n")
    assert capfd.readouterr().err == ""


def test_a_view_that_lost_its_terminal_leaves_the_answer_to_a_signal_to_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    console = console_of(terminal=True)
    with interruptible(), CampaignDisplay(console):
        console._force_terminal = False
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert "one moment" not in printed(console)
    assert capfd.readouterr().err == "ending what is running, one moment\n"


def test_the_time_left_follows_from_the_runs_before(matrix: Matrix, make_record: Callable[..., Record]) -> None:
    console, cell = console_of(terminal=True), matrix.cells["cpu-plain"]
    with CampaignDisplay(console) as display:
        display.finished(make_record())
        display.finished(make_record("r", "interrupted", None, "stopped by SIGINT"))
        wait_for(console, "1 run, ")
        assert "2 runs, " not in printed(console)
        display.started(PlannedRun(cell, 2), 2, 25)
        wait_for(console, "1 of 25 runs")
    # The first run took an hour, and 24 runs are left.
    assert re.search(r"1 of 25 runs, \d s in all, about 24.0 h left", printed(console))
    with CampaignDisplay(told := console_of(terminal=True)) as display:
        display.finished(make_record())
        # Two runs go side by side, which only the caller knows.
        display.time_left(12 * 3600.0)
        display.started(PlannedRun(cell, 2), 2, 25)
        wait_for(told, "about 12.0 h left")
    assert expected_end([5.0, 5.0, 60.0], 3, NOW) == NOW + 15
    assert expected_end([], 3, NOW) is None


def test_what_is_done_outside_of_runs_is_noted_once_and_taken_back(
    matrix: Matrix, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = matrix.cells["cpu-plain"]
    noted: list[str] = []
    console = console_of(terminal=False)
    monkeypatch.setattr(screen_display, "STALL_SECONDS", 0.01)
    with CampaignDisplay(console, doing=noted.append) as display:
        display.started(PlannedRun(cell, 1), 1, 2)
        assert noted == [""]
        display.finished(make_record())
        display.preparing(cell.stack)
        display.step("fetching torch: 10 of 300 MB")
        display.step("fetching torch: 20 of 300 MB")
        clock = vars(time) | {"time": partial(next, count(time.time() + 60, 60.0))}
        monkeypatch.setattr(screen_display, "time", SimpleNamespace(**clock))
        wait_for(console, " fetching torch: 20 of 300 MB: 22 min so far")
        monkeypatch.undo()
        display.short_step("checking bars.csv")
        display.started(PlannedRun(cell, 2), 2, 2)
    assert noted == ["", "preparing cpu", "fetching torch", "checking bars.csv", ""]
    assert printed(console).count(" fetching torch\n") == 1
    assert " fetching torch: 20 of 300 MB: 22 min so far" in printed(console)
    # The step is shown again each time that its duration has doubled.
    assert printed(console).count(" fetching torch: 20 of 300 MB: ") < 12
    assert "checking" not in printed(console)


def test_without_a_terminal_there_is_a_line_a_minute_of_the_first_run_that_goes_on(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, planned = console_of(terminal=False), PlannedRun(matrix.cells["cpu-plain"], 1)
    monkeypatch.setattr(screen_display, "STALL_SECONDS", 0.2)
    with CampaignDisplay(console) as display:
        display.started(planned, 1, 2)
        display.progress(a_line(wall=time.time()))
        wait_for(console, " so far\n")
        display.lane(1).started(planned, 2, 2)
        wait_for(console, " beside it\n")
    told = [re.sub(r"\d+ s", "0 s", line.partition(" ")[2]) for line in printed(console).splitlines()]
    run = "[1/2] cpu-plain: step 30/120, loss 0.6931, 2.0 GB RAM, 0 s so far"
    assert list(dict.fromkeys(told)) == [run, f"{run}; 1 more run beside it"]


def test_how_many_runs_there_will_be_need_not_be_known(matrix: Matrix, make_record: Callable[..., Record]) -> None:
    console = console_of(terminal=False)
    with CampaignDisplay(console) as display:
        display.started(PlannedRun(matrix.cells["cpu-plain"], 1), 7, 0)
        display.finished(make_record())
    when, _, said = printed(console).partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", when)
    assert said.startswith("[7] cpu-plain: completed")


def test_a_line_names_commands_as_they_are_typed_there(make_record: Callable[..., Record]) -> None:
    found = Explanation(rule=None, class_="crash", cause="c", remedy="r", link=None, presets=(), lines=())
    record = make_record("r1", "failed", "crash", "it failed").model_copy(update={"explanation": found})
    console = Console(file=io.StringIO(), width=200)
    with CampaignDisplay(console, command=Invocation(options=("--results", "else where")).command) as display:
        display.finished(record)
        display.problem("no host; `matrix --index SOURCE=URL`")
    assert "  crash; `.venv/bin/matrix --results 'else where' explain r1` says more" in printed(console)
    assert "no host; `.venv/bin/matrix --results 'else where' --index SOURCE=URL`" in printed(console)
