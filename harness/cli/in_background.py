"""`--detach`: starts the very command that was typed again, in the background."""

import sys
import time
from pathlib import Path

from harness.base.command_words import agreed
from harness.campaign.detach import detach
from harness.cli.shared import Settings, print_json, typed_words
from harness.screen.terminal import echo


def start_in_background(settings: Settings, *, as_json: bool) -> None:
    """Start this very command again in the background, and say how to attach to it and how to end it."""
    words = agreed(typed_words(), without="--detach")
    log = settings.results.folder / "campaigns" / f"detached-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log"
    program = Path(sys.argv[0]).absolute()
    started = detach((str(program), *settings.invocation.options, *words), log)
    watch = settings.invocation.command("watch")
    if as_json:
        print_json({"by": started.by, "watch": watch, "stop": started.stop, "log": str(log)})
        return
    echo(f"Runs on as {started.by}. `{watch}` attaches, `{started.stop}` ends it; what it says is in {log}")
