"""Tests of the live view of a campaign, on recorded terminals of several sizes."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from benchmarks.live_picture import FILE, picture
from harness.base.durations import span
from harness.base.interrupts import interruptible
from harness.campaign.bench.plan import PlannedRun
from harness.diagnosis.judge import OF_OUTCOMES, OF_PRODUCTS
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Explanation, Record
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Matrix
from harness.screen.live import Current, LiveView, Scene, Square, Stall, squares_of
from tests.harness.screen.recorded import ESCAPES, NOW, a_line, a_verdict

STACKS = ("rocm6.2-torch2.5.1", "rocm6.3-torch2.7.1", "rocm6.3-torch2.9.1", "rocm7.0-torch2.10.0", "cpu")
PRESETS = ("plain", "no-hipblaslt", "no-sdma", "notes-stable", "notes-aggressive", "notes-dockerfile", "one", "two")


def a_square(stack: str, preset: str, **changes: Any) -> Square:
    return replace(Square(f"{stack}-{preset}", stack, preset), **changes)


def forty() -> tuple[Square, ...]:
    return tuple(a_square(stack, preset) for stack in STACKS for preset in PRESETS)


def shown(scene: Scene, width: int = 120, height: int = 40, now: float = NOW) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    console.print(LiveView(scene, now))
    lines = ESCAPES.sub("", console.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert len(lines) < height
    return [line.rstrip() for line in lines]


def a_run(**changes: Any) -> Current:
    first = a_line(wall=NOW - 30, done=0)
    current = Current("[3/12] cpu-plain", NOW - 90, "cpu-plain").advanced(first).advanced(a_line())
    return replace(current, **changes)


def test_the_grid_tells_every_tier_its_counts_and_which_cell_runs() -> None:
    squares = (
        a_square("cpu", "plain", tier="known-good", passes=33, runs=33),
        a_square("cpu", "no-sdma"),
        a_square("rocm6.3-torch2.9.1", "plain", tier="failing", passes=0, runs=2),
        a_square("rocm6.3-torch2.9.1", "no-sdma", tier="flaky", passes=2, runs=3),
    )
    lines = shown(Scene(NOW - 600, squares, (a_run(cell="cpu-no-sdma"),), done=2, total=12, ends=NOW + 1500))
    assert lines[:3] == [
        "         cpu               rocm6.3-torch2.9.1",
        "plain    33/33 known-good  0/2 failing",
        "no-sdma  >                 2/3 flaky",
    ]
    assert lines[-1] == "2 of 12 runs, 10 min so far, about 25 min left"


def test_what_ends_a_little_later_than_expected_is_not_said_to_take_long() -> None:
    def foot(ends: float) -> str:
        return shown(Scene(NOW - 600, done=9, total=10, ends=ends))[-1]

    assert foot(NOW - 1) == foot(NOW - 90) == "9 of 10 runs, 10 min so far"
    assert foot(NOW + 0.4) == "9 of 10 runs, 10 min so far"
    assert foot(NOW - 300) == "9 of 10 runs, 10 min so far, longer than expected"
    # The number of attempts that a training takes is not known.
    assert shown(Scene(NOW - 600))[-1] == "10 min so far"


def test_a_run_tells_phase_step_loss_memory_and_time_left() -> None:
    text = " ".join(shown(Scene(NOW, currents=(a_run(),))))
    assert "[3/12] cpu-plain" in text
    # 30 steps took 30 s, and 90 are left.
    assert "step 30/120, loss 0.6931, 2.0 GB RAM, 2 min so far, about 2 min left" in text
    # A line of progress without a loss does not hide the last loss.
    validating = a_run().advanced(a_line(phase="validate", done=0, total=9, loss=None))
    assert "step 30/120, validate 0/9, loss 0.6931, 2.0 GB" in " ".join(shown(Scene(NOW, currents=(validating,))))
    assert "left" not in " ".join(shown(Scene(NOW, currents=(a_run().advanced(a_line(done=120)),))))
    assert a_run().seconds_left(NOW) == validating.seconds_left(NOW) == 90
    device = {"rss_bytes": 10**9, "device_allocated_bytes": 10**9, "device_reserved_bytes": 3 * 10**9}
    two = a_run().advanced(a_line(memory=device)).advanced(a_line(rank=1, memory=device))
    assert "2.0 GB RAM + 6.0 GB on devices" in " ".join(shown(Scene(NOW, currents=(two,))))


@pytest.mark.parametrize(("width", "has_bar"), [(120, True), (80, True), (72, False)])
def test_the_bar_leaves_the_words_on_one_line(width: int, has_bar: bool) -> None:
    _, line, _ = shown(Scene(NOW, currents=(a_run(),)), width)
    assert line.endswith("step 30/120, loss 0.6931, 2.0 GB RAM, 2 min so far, about 2 min left")
    assert line.startswith("  step") is not has_bar


def test_the_bar_does_not_jump_where_a_training_is_validated() -> None:
    def bar(current: Current) -> str:
        # Keep the colours, because they show how far the bar is.
        console = Console(file=io.StringIO(), width=200, force_terminal=True)
        console.print(LiveView(Scene(NOW, currents=(current,)), NOW))
        drawn, found, _ = console.file.getvalue().partition(f"{current.advance.phase} " if current.advance else "")  # type: ignore[attr-defined]
        assert found
        return str(drawn)

    stepping = a_run()
    for line in (a_line(phase="validate", done=8, total=9), a_line(phase="checkpoint")):
        assert bar(stepping.advanced(line)) == bar(stepping)
    assert bar(stepping.advanced(a_line(done=60))) != bar(stepping)
    # A run that has no steps yet shows the progress of its own phase.
    reading, read = (Current("c", NOW, "c").advanced(a_line(phase="data", done=done, total=9)) for done in (0, 8))
    assert bar(reading) != bar(read)


def test_a_stall_is_reported_with_its_limit_while_it_lasts() -> None:
    still = Stall(75.0, "step", 180.0, NOW)
    assert "no progress for 75 s in phase step (limit 180 s)" in " ".join(
        shown(Scene(NOW, currents=(a_run(stall=still),)))
    )
    for over in (replace(still, at=NOW - 60), replace(still, seconds=2.0)):
        assert "no progress" not in " ".join(shown(Scene(NOW, currents=(a_run(stall=over),))))
    assert a_run(stall=still).advanced(a_line(done=31)).stall is None


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40])
@pytest.mark.parametrize("height", [50, 24, 12])
def test_forty_cells_fit_every_terminal(width: int, height: int) -> None:
    scene = Scene(NOW, forty(), (a_run(), a_run(label="[4/12] rocm7.0-torch2.10.0-notes-dockerfile")), 3, 40, NOW + 60)
    lines = shown(scene, width, height)
    grid = [line for line in lines if re.fullmatch(r"\S+( +[.>])+", line)]
    if height >= 24:
        assert len(grid) in (len(STACKS), len(PRESETS))
        assert sum(line.count(" .") + line.count(" >") for line in grid) == 40
    assert any(line.startswith(("[3/12]", "[4/12]")) for line in lines)


def test_where_no_grid_fits_its_sums_are_reported() -> None:
    squares = (*forty()[1:], a_square("cpu", "plain", tier="good", passes=17, runs=17))
    told = " ".join(shown(Scene(NOW, squares, (a_run(),)), 60, 8))
    assert "40 cells: 39 untested, 1 good" in told


def test_only_the_newest_verdict_that_is_not_stale_counts(matrix: Matrix) -> None:
    cell = matrix.cells["cpu-plain"]
    verdicts = [
        a_verdict(passes=3, runs=3, last_at=2.0),
        a_verdict(passes=9, runs=9, last_at=1.0),
        a_verdict(passes=5, runs=5, last_at=3.0, stale=True),
    ]
    assert squares_of([cell], verdicts) == (Square("cpu-plain", "cpu", "plain", "seen", 3, 3),)
    assert squares_of([cell], ()) == (Square("cpu-plain", "cpu", "plain"),)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "60 min"), (7200, "2.0 h")]
)
def test_times_as_people_say_them(seconds: float, told: str) -> None:
    assert span(seconds) == told


def test_a_stall_is_worth_a_line_after_a_minute_and_each_time_it_doubles() -> None:
    lines = StallLines()
    assert [s for s in range(600) if lines.worth(s)] == [60, 120, 240, 480]
    assert [s for s in range(100) if lines.worth(s)] == [60]
    late = StallLines()
    assert [late.worth(300), late.worth(301), late.worth(480)] == [True, False, True]


def console_of(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=100, height=30, force_terminal=terminal, highlight=False)


def printed(console: Console) -> str:
    return ESCAPES.sub("", console.file.getvalue())  # type: ignore[attr-defined]


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
    while text not in printed(console) and time.monotonic() < until:
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
    assert re.search(r"0 of 2 runs, \d s so far, about 2 min left", text)
    assert "1 of 2 runs" in text
    assert "[1/2] cpu-plain (run 2): completed" in text
    assert "\x1b[2K" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_view_shows_what_a_signal_is_answered_with_as_a_line_in_it_would_move_it_and_leaves_it_behind(
    capfd: pytest.CaptureFixture[str],
) -> None:
    console = console_of(terminal=True)
    with interruptible(), CampaignDisplay(console) as display:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        wait_for(console, " so far, ending what is running, one moment")
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
    assert re.search(r"1 of 25 runs, \d s so far, about 24.0 h left", printed(console))
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
    assert printed(console).count(" so far") < 12
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


def test_a_run_that_ended_before_it_said_what_it_ran_on_has_no_device_in_its_line(
    make_record: Callable[..., Record],
) -> None:
    record = make_record("r", "failed", "crash", "the train process ended with SIGABRT")
    (line, *_) = finished_lines(record.model_copy(update={"ran_on": "unknown"}), "it")
    assert line.endswith(" s: the train process ended with SIGABRT")
    (line, *_) = finished_lines(record.model_copy(update={"ran_on": "cuda x1"}), "it")
    assert line.endswith(" s, cuda x1: the train process ended with SIGABRT")


def test_an_interruption_that_counts_is_said_at_that_moment(make_record: Callable[..., Record]) -> None:
    def told(device: str) -> list[str]:
        record = make_record("r", "interrupted", None, "stopped by SIGTERM", device=device)
        return finished_lines(record.model_copy(update={"interrupted_by": "term"}), "it")

    assert len(told("cpu")) == 1
    assert told("cuda")[1] == (
        "  it counts as failed: TERM ended it, and the host was not shutting down; "
        "`.venv/bin/matrix strike r --reason TEXT` takes it out"
    )


@pytest.mark.parametrize("remedy", [OF_OUTCOMES, OF_PRODUCTS])
def test_where_the_outcome_says_it_all_no_command_says_more(make_record: Callable[..., Record], remedy: str) -> None:
    found = Explanation(rule=None, class_="no-result", cause="c", remedy=remedy, link=None, presets=(), lines=())
    record = make_record("r1", "failed", "no-result", "c").model_copy(update={"explanation": found})
    assert finished_lines(record, "it")[1:] == [f"  {remedy}"]


def test_a_line_names_commands_as_they_are_typed_there(make_record: Callable[..., Record]) -> None:
    found = Explanation(rule=None, class_="crash", cause="c", remedy="r", link=None, presets=(), lines=())
    record = make_record("r1", "failed", "crash", "it failed").model_copy(update={"explanation": found})
    console = Console(file=io.StringIO(), width=200)
    with CampaignDisplay(console, command=Invocation(options=("--results", "else where")).command) as display:
        display.finished(record)
        display.problem("no host; `matrix --index SOURCE=URL`")
    assert "  crash; `.venv/bin/matrix --results 'else where' explain r1` says more" in printed(console)
    assert "no host; `.venv/bin/matrix --results 'else where' --index SOURCE=URL`" in printed(console)


def test_the_picture_in_the_docs_is_that_of_the_code() -> None:
    assert FILE.read_text(encoding="utf-8") == picture()
