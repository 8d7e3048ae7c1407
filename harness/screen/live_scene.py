"""Keeps a scene visible on a terminal while a campaign goes on."""

import time
from contextlib import AbstractContextManager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from harness.base.interrupts import say_in_view
from harness.screen.live import LiveView, Scene

REFRESHES_PER_SECOND = 2


class _LockedLive(Live):
    """A live view whose lock, which it holds while it is redrawn, others can hold."""

    def held(self) -> AbstractContextManager[object]:
        """Return the lock as a context manager."""
        return self._lock


class LiveScene:
    """A context manager that keeps its scene visible on a terminal and shows nothing elsewhere.

    Set `scene` to change it.
    """

    def __init__(self, console: Console, scene: Scene) -> None:
        self.scene = scene
        self._note = ""
        self._console = console
        self._live = _LockedLive(
            get_renderable=lambda: LiveView(self.scene, time.time(), self._note),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    @property
    def shown(self) -> bool:
        """Return whether the view is visible; the terminal may be closed while it is shown."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        if self.shown:
            self._live.start()
            say_in_view(self._shows)
        return self

    def __exit__(self, *_: object) -> None:
        say_in_view()
        self._live.stop()
        # The note disappeared together with the view, but a question that follows may need it.
        self.print_note()

    def printing(self) -> AbstractContextManager[object]:
        """Return a context manager for printing above the view, which is not redrawn meanwhile.

        A view that is redrawn with fewer lines between the preparation of a line and its printing would let the line
        overwrite the lines before it.
        """
        return self._live.held()

    def print_note(self) -> None:
        """Print the answer to a signal, if the view shows one: what is printed later may be its result."""
        if self._note:
            note, self._note = self._note, ""
            self._console.print(escape(note), soft_wrap=True)

    def _shows(self, note: str) -> bool:
        if self.shown:
            self._note = note
        return self.shown
