"""Attacks with lies and garbage in the progress lines."""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.attacks.hostile.app import BOTH, ESCAPES, HTML, UNCHANGED, App, attack, register, replace
from benchmarks.attacks.hostile.contents import DEEP, FAKE_STEPS, GROUP

RANKS = 20_000
FLOOD = 512 << 20
LONG = 1_000_000
FOREVER_SECONDS = 600


@attack("heartbeats without work: a line every half second, never a step", executors=BOTH)
def heartbeats(app: App) -> None:
    _fabricate(app, lambda _: ("step", 3))


@attack("steps past the total, for ever", diagnoses=("wrong-result",), executors=BOTH)
def past_total(app: App) -> None:
    _fabricate(app, lambda number: ("step", 3 + number * 5))


@attack("phases that flip between training and importing, for ever", diagnoses=("wrong-result",), executors=BOTH)
def flipping_phases(app: App) -> None:
    _fabricate(app, lambda number: ("import" if number % 2 else "step", 3))


@attack("steps that are taken back and made again, for ever", diagnoses=("wrong-result",))
def backward_steps(app: App) -> None:
    _fabricate(app, lambda number: ("step", 3 + number % 5))


def _append(app: App, lines: list[str | bytes]) -> None:
    with (app.work / "progress-0.jsonl").open("ab") as stream:
        for line in lines:
            stream.write(line if isinstance(line, bytes) else line.encode())


def _progress_with(app: App, make: Callable[[dict[str, Any]], list[str | bytes]]) -> None:
    with app.training(3):
        line = app.progress()[-1]
        app.done()
        _append(app, make(line))


LINES: dict[str, tuple[str, Callable[[dict[str, Any]], list[str | bytes]]]] = {
    "deep": (f"a line of JSON {DEEP:,} deep", lambda _: ["[" * DEEP + "\n"]),
    "nan": (
        "NaN and 1e400 in its numbers",
        lambda v: [
            json.dumps({**v, "done": float("nan")}) + "\n",
            json.dumps({**v, "wall": "X"}).replace('"X"', "1e400") + "\n",
        ],
    ),
    "large-integer": (
        "2^70 for done, rank and pid",
        lambda v: [json.dumps({**v, "done": 2**70, "rank": 2**70, "pid": 2**70}) + "\n"],
    ),
    "other-rank": (
        "lines of a million ranks in one file",
        lambda v: [json.dumps({**v, "rank": n}) + "\n" for n in range(LONG)],
    ),
    "rubbish": ("random bytes", lambda _: [os.urandom(1 << 20)]),
    "long-line": (f"a line of {FLOOD >> 20} MB", lambda _: [b"x" * FLOOD + b"\n"]),
    "flood": (f"{FLOOD >> 20} MB of sound lines", lambda v: [(json.dumps(v) + "\n") * (FLOOD // 400)]),
    "escapes": ("terminal escapes and HTML for a phase", lambda v: [json.dumps({**v, "phase": ESCAPES + HTML}) + "\n"]),
}
for _name, (_what, _make) in LINES.items():
    register(
        f"progress-{_name}",
        GROUP,
        f"progress has {_what}",
        partial(_progress_with, make=_make),
        executors=BOTH if _name in ("deep", "long-line") else ("process",),
        may_complete=UNCHANGED,
    )


@attack(f"progress files of {RANKS:,} ranks", may_complete=UNCHANGED, executors=BOTH)
def many_ranks(app: App) -> None:
    with app.training():
        line = app.progress()[-1]
        app.done()
        for rank in range(1, RANKS):
            text = json.dumps({**line, "rank": rank, "phase": "teardown"})
            (app.work / f"progress-{rank}.jsonl").write_text(text + "\n", encoding="utf-8")


@attack("the progress file is cut, rewritten and replaced while it trains", may_complete=UNCHANGED)
def rewritten_progress(app: App) -> None:
    process = app.start()
    place = app.work / "progress-0.jsonl"
    while process.poll() is None:
        if place.exists():
            content = place.read_bytes()
            os.truncate(place, len(content) // 2)
            replace(place).write_bytes(content)
            # The harness may end the run before the training does.
            app.done()
        time.sleep(0.01)
    if process.returncode:
        sys.exit(process.returncode)


@attack("random bytes and 10^18 as the position in a step", may_complete=UNCHANGED)
def rubbish_position(app: App) -> None:
    process = app.start()
    while process.poll() is None:
        (app.work / "position-0.bin").write_bytes(os.urandom(4096))
        time.sleep(0.01)
    if process.returncode:
        sys.exit(process.returncode)


def _fabricate(app: App, tell: Callable[[int], tuple[str, int]]) -> None:
    """Write progress lines without end, and do nothing else."""
    folder = app.run_unseen(3)
    first = app.progress(folder)
    lines: list[str | bytes] = [json.dumps(line) + "\n" for line in first]
    _append(app, lines)
    app.done()
    until, number = time.monotonic() + FOREVER_SECONDS, 0
    while time.monotonic() < until:
        number += 1
        phase, done = tell(number)
        clock = {"wall": time.time(), "monotonic": time.monotonic()}
        _append(app, [json.dumps({**first[-1], **clock, "phase": phase, "done": done, "total": FAKE_STEPS * 2}) + "\n"])
        time.sleep(0.5)
