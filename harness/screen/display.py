"""Shows a campaign: live on a terminal, in plain lines when piped."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import click
from rich.console import Console
from rich.markup import escape

from harness.base.errors import UserError
from harness.campaign.bench.display import Display, Elsewhere
from harness.campaign.bench.plan import PlannedRun
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.evidence.verdicts.verdict import Verdict
from harness.host.engine_errors import ENGINE_ERRORS
from harness.matrix.cells import Cell
from harness.matrix.stacks import Stack
from harness.report.invocation import AS_MADE
from harness.run.watch.watchdog import RankStall
from harness.screen.fitted import as_question
from harness.screen.live import Current, Scene, Stall, advance_in_words, expected_end, squares_of
from harness.screen.live_scene import LiveScene
from harness.screen.log_lines import advances_in_words, finished_lines, print_stamped
from harness.screen.steps import without_megabytes

STALL_SECONDS = 60.0


class StallLines:
    """Selects the stalls and steps that are printed: after a minute, then each time their length has doubled."""

    def __init__(self) -> None:
        self._next = STALL_SECONDS

    def worth(self, seconds: float) -> bool:
        """Return whether to print a stall or step that has lasted for `seconds` so far."""
        if seconds < STALL_SECONDS:
            self._next = STALL_SECONDS
        worth = seconds >= self._next
        while self._next <= seconds:
            self._next *= 2
        return worth


class Lane(Display):
    """Shows the events of one of the runs that a campaign makes at the same time."""

    def __init__(self, display: "CampaignDisplay") -> None:
        self._display = display
        self._label = ""
        self.stalls = StallLines()
        self.current: Current | None = None

    def lane(self, number: int) -> "Lane":
        """Return the lane of another run."""
        return self._display.lane(number)

    def preparing(self, stack: Stack) -> None:
        """Show that an environment is being prepared."""
        self._show(Current(f"preparing {stack.name}", time.time()))

    def step(self, text: str) -> None:
        """Show a step that precedes a run; the log gets one line for a transfer, not one for each megabyte."""
        name = without_megabytes(text)
        if self.current and without_megabytes(self.current.label) == name:
            self._show(replace(self.current, label=text))
            return
        self._show(Current(text, time.time()))
        if not self._display.live:
            self._display.log(escape(name))

    def short_step(self, text: str) -> None:
        """Show a step that takes some seconds; the log gets no line for it."""
        self._show(Current(text, time.time()))

    def time_left(self, seconds: float | None) -> None:
        """Show the time that the campaign still needs; None if it cannot be estimated."""
        self._display.time_left(seconds)

    def started(self, planned: PlannedRun, position: int, total: int, elsewhere: Elsewhere | None = None) -> None:
        """Show that a run begins; `total` is the number of runs, 0 if it is unknown."""
        again = f" (run {planned.repeat})" if planned.repeat > 1 else ""
        # Name the GPUs, because the id of a cell does not distinguish runs on different GPUs.
        on = f" on GPU {', '.join(map(str, planned.gpus))}" if planned.placement else ""
        if elsewhere and elsewhere.host:
            on += f" of {elsewhere.host}" if on else f" on {elsewhere.host}"
        counted = f"{position}/{total}" if total else f"{position}"
        self._label = f"[{counted}] {planned.cell.id}{again}{on}"
        self._display.began(position, total, elsewhere)
        self._show(Current(self._label, time.time(), planned.cell.id))

    def progress(self, line: Progress) -> None:
        """Show progress of the run."""
        if self.current:
            self._show(self.current.advanced(line))

    def stalled(self, standing: RankStall) -> None:
        """Show a stall of the run; `standing` describes the rank that advanced last."""
        seen = Stall(standing.idle, standing.phase, standing.limit, time.time())
        if self.current:
            self._show(replace(self.current, stall=seen))
        if self.stalls.worth(standing.idle) and not self._display.live:
            self._display.log(escape(f"{self._label}: {seen.words}"))

    def finished(self, record: Record) -> None:
        """Show the outcome of the run."""
        self._show(None)
        # An interrupted run is not counted, because it will be repeated.
        if record.outcome != "interrupted":
            self._display.ended(record.finished - record.intent.started)
        for line in finished_lines(record, self._label, self._display.command):
            self._display.log(line)
        self._display.judge()

    def notice(self, text: str) -> None:
        """Show what is worth a line."""
        self._display.notice(text)

    def problem(self, text: str) -> None:
        """Show why cells could not be run."""
        self._display.problem(text)

    def agrees(self, question: str) -> bool:
        """Ask the person who pressed Ctrl-C."""
        return self._display.agrees(question)

    def _show(self, current: Current | None) -> None:
        self.current = current
        self._display.redraw()


class CampaignDisplay(Lane):
    """A context manager that shows a campaign's events on `console`; as a lane itself it shows the first run at a time.

    `cells`: the cells of its grid.
    `verdicts`: called after every run; returns the verdicts on these cells.
    `doing`: called with what is done outside of runs, for users who watch from elsewhere; with "" when that has ended.
    `command`: as in `finished_lines`.
    """

    def __init__(
        self,
        console: Console,
        cells: Sequence[Cell] = (),
        verdicts: Callable[[], Iterable[Verdict]] = tuple,
        doing: Callable[[str], None] = lambda _: None,
        command: Callable[..., str] = AS_MADE.command,
    ) -> None:
        super().__init__(self)
        self.command = command
        self._doing = doing
        self._noted: str | None = None
        self._console = console
        self._cells = cells
        self._verdicts = verdicts
        self._view = LiveScene(console, Scene(time.time(), squares_of(cells, ())))
        self._seconds: list[float] = []
        self._lanes: dict[int, Lane] = {0: self}
        self._over = threading.Event()
        self._logged = time.monotonic()

    def __enter__(self) -> Self:
        self.judge()
        self._view.__enter__()
        threading.Thread(target=self._tell_what_goes_on, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._view.__exit__()

    def _tell_what_goes_on(self) -> None:
        while not self._over.wait(STALL_SECONDS / 4):
            if self.live:
                continue
            now, lanes = time.time(), tuple(self._lanes.values())
            # Read each lane's state once, because a run may end meanwhile.
            runs = [one for one in (lane.current for lane in lanes) if one and one.cell]
            if runs and time.monotonic() - self._logged >= STALL_SECONDS:
                self.log(escape(advances_in_words(runs, now)))
            for lane in lanes:
                step = lane.current
                # A scheduler may leave jobs in its queue for days.
                if step and not step.cell and lane.stalls.worth(now - step.began):
                    self.log(escape(f"{step.label}: {advance_in_words(step, now)}"))

    def lane(self, number: int) -> "Lane":
        """Return the lane of one of several concurrent runs, by its number from 0."""
        return self._lanes.setdefault(number, Lane(self))

    def time_left(self, seconds: float | None) -> None:
        """Show the time that the campaign still needs; None if it cannot be estimated."""
        self._change(ends=None if seconds is None else time.time() + seconds)

    def notice(self, text: str) -> None:
        """Show what is worth a line."""
        self.log(self._as_typed(text))

    def problem(self, text: str) -> None:
        """Show why cells could not be run."""
        self.log(f"[red]{self._as_typed(text)}[/red]")

    def agrees(self, question: str) -> bool:
        """Ask the person who pressed Ctrl-C.

        Another Ctrl-C means no, and so does the lack of an interactive terminal.
        """
        if not (self._console.is_terminal and sys.stdin.isatty()):
            return False
        self._view.__exit__()
        with suppress(click.Abort):
            return click.confirm(as_question(self._console, question), err=True)
        return False

    @property
    def live(self) -> bool:
        """Return whether the live view is shown, so that the log needs no lines for what it shows."""
        return self._view.shown

    def log(self, markup: str) -> None:
        """Print a line with the time in front."""
        self._logged = time.monotonic()
        with self._view.printing():
            self._view.print_note()
            print_stamped(self._console, markup)

    def began(self, position: int, total: int, elsewhere: Elsewhere | None = None) -> None:
        """Count a run that begins."""
        done = self._view.scene.done if self._lanes_in_use() else position - 1
        done = elsewhere.done if elsewhere else done
        self._change(done=done, total=total or None)
        if total and self._seconds and self._view.scene.ends is None:
            self._change(ends=expected_end(self._seconds, total - position + 1, time.time()))

    def ended(self, seconds: float) -> None:
        """Count a run that took `seconds`."""
        self._seconds.append(seconds)
        done = self._view.scene.done + 1
        self._change(done=done, ends=None if done == self._view.scene.total else self._view.scene.ends)

    def redraw(self) -> None:
        """Show the current activity of each lane."""
        currents = tuple(lane.current for lane in self._lanes.values() if lane.current)
        self._change(currents=currents)
        step = next((without_megabytes(one.label) for one in currents if not one.cell), "")
        if step != self._noted:
            self._noted = step
            self._doing(step)

    def judge(self) -> None:
        """Update the verdicts in the view."""
        if self._view.shown and self._cells:
            # The view is a convenience, so ignore errors here: commands that need the index or the engine report them.
            with suppress(UserError, *ENGINE_ERRORS):
                self._change(squares=squares_of(self._cells, self._verdicts()))

    def _as_typed(self, text: str) -> str:
        return escape(text.replace("`matrix ", f"`{self.command()} "))

    def _lanes_in_use(self) -> bool:
        return any(lane.current and lane.current.cell for lane in self._lanes.values())

    def _change(self, **changes: Any) -> None:
        self._view.scene = replace(self._view.scene, **changes)
