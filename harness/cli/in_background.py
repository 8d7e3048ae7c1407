"""Commands that run on without a terminal: from their start with `--detach`, else from when theirs is closed."""

import os
import sys
import time
from pathlib import Path

from harness.base.closed_terminal import Terminal
from harness.base.command_words import agreed
from harness.campaign.detach import detach
from harness.cli.shared import Settings, err, out, print_json, typed_words
from harness.screen.terminal import echo


def start_in_background(settings: Settings, *, as_json: bool) -> None:
    """Start this very command again in the background, and say how to attach to it and how to end it."""
    words = agreed(typed_words(), without="--detach")
    log = _log(settings)
    program = Path(sys.argv[0]).absolute()
    started = detach((str(program), *settings.invocation.options, *words), log)
    watch = settings.invocation.command("watch")
    if as_json:
        print_json({"by": started.by, "watch": watch, "stop": started.stop, "log": str(log)})
        return
    echo(f"Runs on as {started.by}. `{watch}` attaches, `{started.stop}` ends it; what it says is in {log}")


def terminal_to_outlive(settings: Settings, *, what: str) -> Terminal:
    """Return this terminal; where there is one, say that the command goes on when it is closed."""
    log, watch, stop = _log(settings), settings.invocation.command("watch"), f"kill -INT {os.getpid()}"

    def turn_plain() -> None:
        for console in (out, err):
            console.turn_plain()

    terminal = Terminal(log, f"the terminal was closed, and the {what} goes on; `{stop}` ends it", turn_plain)
    if terminal.is_there:
        echo(
            f"The {what} goes on when this terminal is closed: `{watch}` attaches, `{stop}` ends it; what it says then "
            f"is in {log}",
            err=True,
        )
    return terminal


def _log(settings: Settings) -> Path:
    return settings.results.folder / "campaigns" / f"detached-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log"
