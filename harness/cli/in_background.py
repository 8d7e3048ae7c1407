"""Commands that outlive their terminal: from the start with `--detach`, or from when their terminal is closed."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from harness.base.closed_terminal import Terminal, outliving
from harness.base.command_words import with_yes
from harness.base.durations import DAY
from harness.base.interrupts import interruptible
from harness.campaign.detach import detach
from harness.campaign.other_hosts.follow import CONTINUES
from harness.cli.shared import INTERRUPTED, Settings, err, out, print_json, typed_words
from harness.screen.display import CampaignDisplay
from harness.screen.fitted import print_folded

LOG_NAME = re.compile(r"detached-\d{8}T\d{6}Z-[0-9a-f]{6}\.log")


def start_in_background(settings: Settings, *, as_json: bool) -> None:
    """Start this very command again in the background, and print how to attach to it and how to end it."""
    words = with_yes(typed_words(), without="--detach")
    log = _log(settings)
    program = Path(sys.argv[0]).absolute()
    started = detach((str(program), *settings.invocation.options, *words), log)
    watch = settings.invocation.command("watch")
    if as_json:
        print_json({"by": started.by, "watch": watch, "stop": started.stop, "log": str(log)})
        return
    print_folded(
        out, f"Continues as {started.by}. `{watch}` attaches, `{started.stop}` ends it; its output is in {log}"
    )


@contextmanager
def through_closed_terminal(settings: Settings, *, what: str, watched: str = "attaches") -> Iterator[None]:
    """Keep running when the terminal is closed, after telling the user so; Ctrl-C and SIGTERM raise KeyboardInterrupt.

    `watched`: what `matrix watch` does with this command, for the message; empty if it shows nothing.
    """
    terminal = _terminal_to_outlive(settings, what=what, watched=watched)
    with outliving(terminal), interruptible(terminal.is_closed):
        yield


@contextmanager
def search_shown(settings: Settings, *, what: str = "search", watched: str = "attaches") -> Iterator[CampaignDisplay]:
    """Show the runs of a search, which outlives its terminal; on an interruption print how to continue, and exit."""
    try:
        with (
            through_closed_terminal(settings, what=what, watched=watched),
            CampaignDisplay(err, command=settings.invocation.command) as display,
        ):
            yield display
    except KeyboardInterrupt:
        err.print(f"Interrupted; {CONTINUES}.")
        sys.exit(INTERRUPTED)


def _terminal_to_outlive(settings: Settings, *, what: str, watched: str) -> Terminal:
    log, watch, stop = _log(settings), settings.invocation.command("watch"), f"kill -INT {os.getpid()}"

    def turn_plain() -> None:
        for console in (out, err):
            console.turn_plain()

    terminal = Terminal(log, f"the terminal was closed; the {what} continues; `{stop}` ends it", turn_plain)
    if terminal.is_there:
        attach = f"`{watch}` {watched}, " if watched else ""
        ends = f"{attach}`{stop}` ends it; its output is then in {log}"
        print_folded(err, f"The {what} continues if this terminal is closed: {ends}")
    return terminal


def _log(settings: Settings) -> Path:
    # A random name: other users of a shared folder cannot create the file in advance.
    name = f"detached-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{token_hex(3)}.log"
    return settings.results.folder / "campaigns" / name


def last_output(results: Path) -> Path | None:
    """Return the log of this user's newest command without a terminal, if it wrote there in the last day."""
    for log in sorted((results / "campaigns").glob("detached-*.log"), reverse=True):
        with suppress(OSError):
            written = log.lstat()
            if LOG_NAME.fullmatch(log.name) and written.st_uid == os.geteuid():
                return log if time.time() - written.st_mtime < DAY else None
    return None
