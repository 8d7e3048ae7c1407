"""Tests of the live view of a campaign, on recorded terminals of several sizes."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from benchmarks.live_picture import FILE, picture
from harness.base.durations import span
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
    assert lines[-1] == "2 of 12 runs, 10 min in all, about 25 min left"


def test_what_ends_a_little_later_than_expected_is_not_said_to_take_long() -> None:
    def foot(ends: float) -> str:
        return shown(Scene(NOW - 600, done=9, total=10, ends=ends))[-1]

    assert foot(NOW - 1) == foot(NOW - 90) == "9 of 10 runs, 10 min in all"
    assert foot(NOW + 0.4) == "9 of 10 runs, 10 min in all"
    assert foot(NOW - 300) == "9 of 10 runs, 10 min in all, longer than expected"
    # The number of attempts that a training takes is not known.
    assert shown(Scene(NOW - 600))[-1] == "10 min in all"


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
    ending = a_run().advanced(a_line(phase="teardown", done=0, total=None, loss=None))
    assert "  ending, then verification, loss" in " ".join(shown(Scene(NOW, currents=(ending,))))
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
    past = replace(still, seconds=293.0)
    assert (
        past.words == "no progress for 293 s in phase step, past the limit of 180 s: ended once it is confirmed to hang"
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


def test_a_cell_that_was_not_planned_has_a_place_once_it_was_run(matrix: Matrix) -> None:
    verdict = a_verdict(cell="cpu-no-sdma", preset="no-sdma", passes=1, runs=1)
    planned, tried = squares_of([matrix.cells["cpu-plain"]], [verdict])
    assert planned == Square("cpu-plain", "cpu", "plain")
    assert (tried.cell, tried.stack, tried.preset, tried.runs) == ("cpu-no-sdma", "cpu", "no-sdma", 1)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "60 min"), (7200, "2.0 h")]
)
def test_times_as_people_say_them(seconds: float, told: str) -> None:
    assert span(seconds) == told


def test_the_picture_in_the_docs_is_that_of_the_code() -> None:
    assert FILE.read_text(encoding="utf-8") == picture()
