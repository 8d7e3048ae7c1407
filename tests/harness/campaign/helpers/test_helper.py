"""Tests of helpers whose campaign ends or no longer needs them: real processes, with jobs that only pretend."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from harness.base.interrupts import interruptible, shielded
from harness.campaign.helpers import together
from harness.campaign.helpers.background import Background
from harness.campaign.helpers.helper import Helper, listen

# A stand-in for a helper's process: a moment after it is interrupted, its job leaves a record.
HELPER = """
import os, sys, threading, time
from multiprocessing.connection import Connection
from pathlib import Path
from harness.base.interrupts import interruptible
from harness.campaign.helpers.helper_main import _end_with_who_began_it
threading.Thread(target=_end_with_who_began_it, daemon=True).start()
def tell(*message):
    Connection(os.dup(1)).send(message)
with interruptible():
    try:
        tell("step", ("begun",))
        time.sleep(60)
    except KeyboardInterrupt:
        tell("problem", ("ending",))
        time.sleep(float(sys.argv[2]))
        Path(sys.argv[1]).write_text("interrupted")
"""


def begin(record: Path, seconds: float = 0.1) -> Helper:
    """Begin a helper whose job takes `seconds` to end in order."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the helper
    command = [sys.executable, "-c", HELPER, str(record), str(seconds)]
    pipe = subprocess.PIPE
    return Helper(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, process_group=0), said)


class Terminal:
    """A display whose terminal is closed at step number `steps`: showing that step raises an error."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, _text: str) -> None:
        self.left -= 1
        if self.left <= 0:
            self.problem()

    def problem(self, *_: str) -> None:
        raise OSError(5, "Input/output error")


def test_helpers_leave_their_records_where_nothing_can_be_shown_any_more(tmp_path: Path) -> None:
    records = [tmp_path / "first", tmp_path / "second"]
    helpers = [begin(record) for record in records]
    terminal = cast("Any", Terminal(len(helpers)))
    try:
        with shielded(), pytest.raises(OSError, match="Input/output error"):
            together._listen(helpers, [terminal, terminal])
    finally:
        for helper in helpers:
            helper.close()
    assert [record.exists() and record.read_text(encoding="utf-8") for record in records] == ["interrupted"] * 2


def test_what_is_made_in_the_background_is_ended_in_order(tmp_path: Path) -> None:
    helper = begin(tmp_path / "record")
    helper.read()
    made = Background(cast("Any", None), cast("Any", None), _stack="mine", _helper=helper)
    made.close()
    assert (tmp_path / "record").read_text(encoding="utf-8") == "interrupted"


def test_what_does_not_end_in_order_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.campaign.helpers.helper.END_SECONDS", 0.02)
    helper = begin(tmp_path / "record", 60)
    helper.read()
    helper.end()
    helper.close()
    assert helper.process.returncode == -signal.SIGKILL


def test_what_a_helper_tells_is_kept_whole_when_an_interruption_comes_as_it_is_read(tmp_path: Path) -> None:
    helper = begin(tmp_path / "record")
    kept = []

    class Interrupted:
        output = helper.output

        def read(self) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            kept.append(helper.read())
            return kept[-1]

    with interruptible(), pytest.raises(KeyboardInterrupt):
        listen([cast("Helper", Interrupted())], lambda *_: None)
    helper.end()
    helper.close()
    assert [one.name for one in kept if one] == ["step"]
