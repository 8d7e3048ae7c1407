"""Shows a campaign: live on a terminal, in plain lines when piped."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from harness.base.errors import UserError
from harness.campaign.plan import PlannedRun
from harness.evidence.app_files import Progress
from harness.evidence.run_files import Record
from harness.evidence.verdicts.verdict import Verdict
from harness.host.engine import ENGINE_ERRORS
from harness.matrix.cells import Cell, Stack
from harness.run.watch.limits import RankStall
from harness.screen.colours import OUTCOME_COLOURS
from harness.screen.live import Current, LiveView, Scene, Stall, expected_end, squares_of

MEGABYTES = re.compile(r": \d+ MB$")
REFRESHES_PER_SECOND = 2
STALL_SECONDS = 60.0


class Steps:
    """A context manager that shows what is being done: a spinner on a terminal, otherwise a line for each new step.

    A transfer is one step, whatever the number of megabytes so far.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._last = ""

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def step(self, text: str) -> None:
        """Show a step that begins or advances."""
        name = MEGABYTES.sub("", text)
        self._status.update(escape(text))
        if name != self._last:
            self._last = name
            if not self._console.is_terminal:
                self._console.print(escape(name), soft_wrap=True)


class LiveScene:
    """A context manager that keeps its scene visible on a terminal; it shows nothing elsewhere. `scene` may be set."""

    def __init__(self, console: Console, scene: Scene) -> None:
        self.scene = scene
        self.shown = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(
            get_renderable=lambda: LiveView(self.scene, time.time()),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self.shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class StallLines:
    """Choice of the stalls that are printed: after a minute, and again each time their length has doubled."""

    def __init__(self) -> None:
        self._next = STALL_SECONDS

    def worth(self, seconds: float) -> bool:
        """Return whether to print a stall that has lasted for `seconds` so far."""
        if seconds < STALL_SECONDS:
            self._next = STALL_SECONDS
        worth = seconds >= self._next
        while self._next <= seconds:
            self._next *= 2
        return worth


class CampaignDisplay:
    """A context manager that shows the events of a campaign on `console`.

    `cells` are those of its grid; `verdicts` returns their verdicts, and is called after every run.
    """

    def __init__(
        self,
        console: Console,
        cells: Sequence[Cell] = (),
        verdicts: Callable[[], Iterable[Verdict]] = tuple,
    ) -> None:
        self._console = console
        self._cells = cells
        self._verdicts = verdicts
        self._view = LiveScene(console, Scene(time.time(), squares_of(cells, ())))
        self._label = ""
        self._seconds: list[float] = []
        self._stalls = StallLines()

    def __enter__(self) -> Self:
        self._judge()
        self._view.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.__exit__(kind, error, trace)

    def preparing(self, stack: Stack) -> None:
        """Show that an environment is being prepared."""
        self._show(Current(f"preparing {stack.name}", time.time()))

    def step(self, text: str) -> None:
        """Show a step that precedes a run."""
        self._show(Current(text, time.time()))
        if not self._view.shown:
            self._log(escape(text))

    def time_left(self, seconds: float | None) -> None:
        """Show the time that the campaign still takes; None if it cannot be estimated."""
        self._change(ends=None if seconds is None else time.time() + seconds)

    def started(self, planned: PlannedRun, position: int, total: int) -> None:
        """Show that a run begins; `total` is the number of runs, 0 if it is unknown."""
        again = f" (repeat {planned.repeat})" if planned.repeat > 1 else ""
        counted = f"{position}/{total}" if total else f"{position}"
        self._label = f"[{counted}] {planned.cell.id}{again}"
        self._change(done=position - 1, total=total or None)
        if total and self._seconds:
            self._change(ends=expected_end(self._seconds, total - position + 1, time.time()))
        self._show(Current(self._label, time.time(), planned.cell.id))

    def progress(self, line: Progress) -> None:
        """Show progress of the current run."""
        self._show(*(current.advanced(line) for current in self._view.scene.currents))

    def still(self, standing: RankStall) -> None:
        """Show a stall of the current run; `standing` is that of the rank that advanced last."""
        still = Stall(standing.idle, standing.phase, standing.limit, time.time())
        self._show(*(replace(current, still=still) for current in self._view.scene.currents))
        if self._stalls.worth(standing.idle) and not self._view.shown:
            self._log(escape(f"{self._label}: {still.words}"))

    def finished(self, record: Record) -> None:
        """Show the outcome of a run."""
        self._seconds.append(record.finished - record.intent.started)
        self._show()
        done = self._view.scene.done + 1
        self._change(done=done, ends=None if done == self._view.scene.total else self._view.scene.ends)
        for line in finished_lines(record, self._label):
            self._log(line)
        self._judge()

    def problem(self, text: str) -> None:
        """Show why cells could not be run."""
        self._log(f"[red]{escape(text)}[/red]")

    def _log(self, markup: str) -> None:
        self._console.print(stamped(markup), soft_wrap=True)

    def _judge(self) -> None:
        if self._view.shown and self._cells:
            # The view is only a convenience: commands that need the index or the engine report their errors.
            with suppress(UserError, *ENGINE_ERRORS):
                self._change(squares=squares_of(self._cells, self._verdicts()))

    def _show(self, *currents: Current) -> None:
        self._change(currents=currents)

    def _change(self, **changes: Any) -> None:
        self._view.scene = replace(self._view.scene, **changes)


def stamped(markup: str) -> str:
    """Return a line of a log with the time in UTC before it."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {markup}"


def finished_lines(record: Record, label: str) -> list[str]:
    """Return the outcome of a run with rich's markup: a line, and a second one if there is an explanation."""
    diagnosis = f" ({record.diagnosis})" if record.diagnosis else ""
    colour = OUTCOME_COLOURS[record.outcome]
    lines = [
        f"{escape(label)}: [{colour}]{record.outcome}[/{colour}]{diagnosis} in {record.seconds:.1f} s, "
        f"{escape(record.ran_on)}: {escape(record.detail)}"
    ]
    if record.explanation and record.outcome not in ("completed", "interrupted"):
        lines.append(escape(f"  {record.explanation.class_}; `matrix explain {record.intent.run_id}` says more"))
    return lines
