"""A campaign on a cluster with several host kinds: one command for each kind runs at the same time.

Each kind needs a campaign of its own because evidence is counted by host kind.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from harness.base.interrupts import signal_of
from harness.cli.in_background import through_closed_terminal
from harness.cli.shared import INTERRUPTED, Settings, print_json, typed_words
from harness.screen.terminal import echo

KIND = "--kind"
LOOK_SECONDS = 1.0


def run_each_kind(settings: Settings, kinds: Mapping[str, Sequence[str]], *, as_json: bool) -> int:
    """Run the typed command once for each host kind, given with its nodes; return the exit status.

    Each line that a command prints is shown with its nodes in front. Ctrl-C is passed on to all commands; the hangup of
    a closed terminal is not.
    """
    with through_closed_terminal(settings, what="campaign"):
        return _run_each(settings, kinds, as_json=as_json)


def _run_each(settings: Settings, kinds: Mapping[str, Sequence[str]], *, as_json: bool) -> int:
    words = (sys.executable, "-P", "-m", "harness", *settings.invocation.options, *typed_words())
    started = {kind: _start((*words, KIND, kind)) for kind in kinds}
    told: dict[str, list[str]] = {kind: [] for kind in kinds}
    readers = []
    for kind, process in started.items():
        for stream, kept in ((process.stdout, told[kind] if as_json else None), (process.stderr, None)):
            assert stream is not None
            readers.append(threading.Thread(target=_show, args=(stream, ",".join(kinds[kind]), kept)))
    for reader in readers:
        reader.start()
    interrupted = False
    try:
        _wait(started.values())
    except KeyboardInterrupt as signalled:
        interrupted = True
        for process in started.values():
            process.send_signal(signal_of(signalled))
        _wait(started.values())
    for reader in readers:
        reader.join()
    if as_json:
        parts = [
            {"kind": kind, "nodes": list(nodes), "campaign": _value("".join(told[kind]))}
            for kind, nodes in kinds.items()
        ]
        print_json({"kinds": parts})
    return INTERRUPTED if interrupted else max(process.returncode for process in started.values())


def end_with_starter() -> None:
    """End this command in an orderly way once its starter is gone: typing the starter's command again continues it."""
    starter = os.getppid()

    def watch() -> None:
        while os.getppid() == starter:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    # A separate process group: Ctrl-C then reaches the command only once, through this process.
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )


def _wait(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.wait()


def _show(stream: IO[str], nodes: str, kept: list[str] | None) -> None:
    with stream:
        for line in stream:
            if kept is None:
                echo(f"{nodes}: {line.rstrip()}", err=True)
            else:
                kept.append(line)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
