"""Tests of Ctrl-C on a terminal: waiting jobs are cancelled, and the user is asked about running ones."""

import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

from harness.rehearsal.stand_in_app import SLOW
from tests.slurm.cluster import Cluster
from tests.slurm.test_slurm import Campaign, left_of, node_of, note_as_known, wait

QUESTION = b"Cancel those, too?"


def shown_runs(campaign: Campaign) -> list[tuple[str, str]]:
    """Return, for each run that goes on, how its label ends after the name of the cell, and its node."""
    runs = campaign.running()
    return [(f" (run {one.repeat})" if one.repeat > 1 else "", node_of(one)) for one in runs]


def test_what_waits_is_cancelled_and_what_runs_where_the_answer_is_yes(slurm: Cluster, place: Path) -> None:
    (place / SLOW).write_text("100")
    campaign = Campaign(place, 6)
    note_as_known(campaign.results, slurm.nodes)
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        campaign.command,
        cwd=place,
        env={**os.environ, "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    # The test reads the terminal, because otherwise the program would wait for space in its buffer.
    os.set_blocking(keyboard, False)
    shown = bytearray()

    def showed(text: bytes) -> bool:
        with suppress(OSError):
            shown.extend(os.read(keyboard, 1 << 16))
        return text in shown

    wait(lambda: not showed(b"never shown") and len(campaign.running()) == 4)
    # Each run is shown with its node and its progress.
    wait(lambda: all(showed(f"host-plain{again} on {node}".encode()) for again, node in shown_runs(campaign)))
    wait(lambda: showed(b"step"))
    process.send_signal(2)
    wait(lambda: showed(QUESTION))
    assert slurm.ask("squeue", "--noheader", "--states=PENDING", "--partition=gpus") == ""
    assert len(campaign.running()) == 4
    os.write(keyboard, b"y\n")
    wait(lambda: not showed(b"never shown") and process.poll() is not None)
    os.close(keyboard)
    assert process.returncode == 130
    wait(lambda: slurm.ask("squeue", "--noheader", "--partition=gpus") == "")
    assert left_of(place) == []
    assert {record.outcome for record in campaign.results.records()} <= {"interrupted"}
