"""Tests of `matrix minimise RUN --over data` with real processes: the stand-in's interpreter crashes on a session."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.conftest import PROGRAM

MATRIX = """\
schema: 2
stacks:
  any: {accelerator: any}
presets:
  plain: {description: nothing set}
workloads:
  tiny:
    description: seconds
    synthetic: {sessions: 60}
    lookback: 20
    epochs: 1
    batch_size: 64
    loader_workers: 0
    time_limit: 120
selections:
  default: {description: all, stacks: [any], presets: all, workload: tiny}
"""
SESSIONS, BAD = 60, 41
# The first trade date is a Tuesday; a session is named after the day on which it ends.
FIRST = datetime(2024, 1, 1, 23, tzinfo=UTC)
CRASHES_ON_DATA = """\
#!/bin/sh
case " $* " in
*" train "*) for word in "$@"; do
  case "$word" in *.csv) if grep -q "^{stamp}" "$word"; then kill -SEGV $$; fi;; esac
done;;
esac
exec "{python}" "$@"
"""


def bars() -> str:
    """Return two bars for each session; the stand-in reads none of them."""
    lines = ["ts,open,high,low,close,volume,vix"]
    for session in range(SESSIONS):
        for hours in (0, 16):
            at = FIRST + timedelta(days=session, hours=hours)
            lines.append(f"{at:%Y-%m-%dT%H:%M:%SZ},4000.00,4001.00,3999.75,4000.50,97,15.00")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Place:
    """A folder with data, an interpreter that crashes, and results."""

    folder: Path
    data: Path

    def command(self, *words: str) -> list[str]:
        """Return the words of a command of `matrix` here."""
        files = ("--matrix", str(self.folder / "matrix.yaml"), "--results", str(self.folder / "results"))
        return [PROGRAM, *files, *words, "--python", str(self.folder / "python")]

    def printed(self, *words: str) -> Any:
        """Return what a command prints as JSON."""
        done = subprocess.run(self.command(*words, "--json"), capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def records(self) -> list[Path]:
        """Return the record files of the searches."""
        return list((self.folder / "results" / "minimise").glob("*/runs/*/record.json"))

    def crash(self, python: Path, bad: datetime) -> Any:
        """Make the interpreter crash on data with this hour, and return the record of a run that crashed."""
        file = self.folder / "python"
        file.write_text(CRASHES_ON_DATA.format(python=python, stamp=f"{bad:%Y-%m-%dT%H}"), encoding="utf-8")
        file.chmod(0o755)
        record = self.printed("run-cell", "any-plain", "--data", str(self.data))
        assert (record["outcome"], record["diagnosis"]) == ("failed", "crash"), record["detail"]
        return record


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    (tmp_path / "bars.csv").write_text(bars(), encoding="utf-8")
    return Place(tmp_path, tmp_path / "bars.csv")


@pytest.mark.slow
def test_the_session_that_crashes_is_found_though_the_search_is_killed_on_the_way(
    place: Place, stand_in: Path, wait: Callable[..., None], left_running: Callable[[Path], list[psutil.Process]]
) -> None:
    bad = FIRST + timedelta(days=BAD)
    record = place.crash(stand_in / "python", bad)
    run = record["intent"]["run_id"]
    with (place.folder / "said.txt").open("w") as said:
        process = subprocess.Popen(place.command("minimise", run, "--over", "data"), stdout=said, stderr=said)
    wait(lambda: len(place.records()) >= 3 or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait(240)
    made = len(place.records())
    told = (place.folder / "said.txt").read_text()
    assert re.search(rf"{run} took [\w. ]+; at most \d+ runs of it or of parts of it follow", told)
    hint = re.search("`(.* explain .*)` says more", told)
    assert hint
    explained = subprocess.run(f"{hint[1]} --json", shell=True, capture_output=True, text=True, check=True)
    assert json.loads(explained.stdout)["diagnosis"] == "crash"

    found = place.printed("minimise", run, "--over", "data")
    assert (found["conclusion"], found["others"]) == ("found", 0)
    name = (bad + timedelta(days=1)).date().isoformat()
    before = (bad - timedelta(days=1)).date().isoformat()
    assert f"3 sessions ({before} to {name}), with the 20 before it" in found["smallest"]
    assert found["whole"] == "40 sessions"
    part = Path(found["file"]).read_text()
    assert part.splitlines()[0] == bars().splitlines()[0]
    assert len(part.splitlines()) == 1 + 2 * 23
    assert f"{bad:%Y-%m-%dT%H}" in part
    assert made <= len(place.records()) <= found["runs"] + 1
    assert left_running(place.folder / "results") == []

    # Runs that were chosen because they fail are no evidence about the cell, and are not repeated.
    counted = place.records()
    assert place.printed("minimise", run, "--over", "data") == found
    assert place.records() == counted
    assert len(list((place.folder / "results" / "runs").glob("*/record.json"))) == 1
    said_so = subprocess.run(
        place.command("minimise", run, "--over", "data"), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said_so[-2].startswith(f"{run}: still failed (crash) with 3 sessions")
    assert said_so[-1].startswith("Next: ")
    assert "run-cell any-plain --workload tiny --lookback 20 --data" in said_so[-1]
