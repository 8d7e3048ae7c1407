"""Shows a campaign: live on a terminal, in plain lines when piped."""

import re
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.contracts import Progress, Record
from harness.matrix import Stack
from harness.plan import PlannedRun

MEGABYTES = re.compile(r": \d+ MB$")
COLOURS = {
    "completed": "green",
    "failed": "red",
    "hung": "magenta",
    "interrupted": "yellow",
    "host-fault": "bright_red",
}


class Steps:
    """A context manager that shows what is being done: a spinner on a terminal, otherwise a line for each new step.

    Of a transfer only the beginning is a new step, not each number of megabytes.
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
        """Something begins, or moved."""
        name = MEGABYTES.sub("", text)
        self._status.update(escape(text))
        if name != self._last:
            self._last = name
            if not self._console.is_terminal:
                self._console.print(escape(name), soft_wrap=True)


class CampaignDisplay:
    """A context manager that takes the events of a campaign. Everything goes to `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None, numbers="", visible=False)
        self._label = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def preparing(self, stack: Stack) -> None:
        """An environment is being made ready."""
        self._begin(f"preparing {stack.name}")

    def started(self, planned: PlannedRun, position: int, total: int) -> None:
        """A run begins."""
        again = f" (repeat {planned.repeat})" if planned.repeat > 1 else ""
        self._label = f"[{position}/{total}] {planned.cell.id}{again}"
        self._begin(f"{self._label} starting")

    def progress(self, line: Progress) -> None:
        """The current run moved."""
        numbers = "" if line.loss is None else f"loss {line.loss:.4f}"
        description = f"{escape(self._label)} {line.phase}"
        self._set_total(line.total)
        self._bar.update(self._task, description=description, completed=line.done, numbers=numbers)

    def finished(self, record: Record) -> None:
        """A run has its record."""
        self._bar.update(self._task, visible=False)
        diagnosis = f" ({record.diagnosis})" if record.diagnosis else ""
        colour = COLOURS[record.outcome]
        self._console.print(
            f"{escape(self._label)}: [{colour}]{record.outcome}[/{colour}]{diagnosis} in {record.seconds:.1f} s, "
            f"{escape(record.ran_on)}: {escape(record.detail)}",
            soft_wrap=True,
        )
        if record.explanation and record.outcome not in ("completed", "interrupted"):
            why = f"  {record.explanation.class_}; `matrix explain {record.intent.run_id}` says more"
            self._console.print(escape(why), soft_wrap=True)

    def _begin(self, description: str) -> None:
        self._bar.reset(self._task, description=escape(description), numbers="", visible=True)
        self._set_total(None)

    def _set_total(self, total: int | None) -> None:
        # To rich's own methods None means "as before"; here it means "not known".
        self._bar.tasks[0].total = total

    def step(self, text: str) -> None:
        """Something takes its time before a run can begin."""
        self._begin(text)
        if not self._console.is_terminal:
            self._console.print(escape(text), soft_wrap=True)

    def problem(self, text: str) -> None:
        """Something kept cells from being run."""
        self._console.print(f"[red]{escape(text)}[/red]", soft_wrap=True)
