import json
import math
import os
import signal
import struct
import subprocess
import sys
import time

import pytest
from ranks.processes import until

from vpoc import stacks
from vpoc.errors import Interrupted, UserError
from vpoc.progress import NONCE, PHASES, Progress, finite, rss_bytes

KEYS = [
    "schema",
    "wall",
    "monotonic",
    "rank",
    "pid",
    "nonce",
    "number",
    "phase",
    "done",
    "total",
    "max_step_s",
    "loss",
    "gradient_norm",
    "epoch_losses",
    "memory",
]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def lines(folder, rank=0):
    def refuse(word):
        raise AssertionError(word)

    text = (folder / f"progress-{rank}.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_a_line_per_change_of_phase(tmp_path):
    progress = Progress(tmp_path / "run", rank=1)
    for name in PHASES:
        progress.phase(name, 5)
    written = lines(tmp_path / "run", 1)
    assert [line["phase"] for line in written] == list(PHASES)
    first = written[0]
    assert list(first) == KEYS
    assert list(first["memory"]) == ["rss_bytes", "device_allocated_bytes", "device_reserved_bytes"]
    assert (first["schema"], first["rank"], first["pid"], first["total"]) == (2, 1, os.getpid(), 5)
    assert abs(first["wall"] - time.time()) < 60
    assert first["memory"]["rss_bytes"] > 1_000_000
    assert first["memory"]["device_allocated_bytes"] is None


def test_every_line_repeats_the_nonce_of_the_run_and_has_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv(NONCE, "a" * 32)
    for _ in range(2):
        progress = Progress(tmp_path)
        for name in ("import", "init", "data"):
            progress.phase(name)
    assert [line["number"] for line in lines(tmp_path)] == [1, 2, 3] * 2
    assert {line["nonce"] for line in lines(tmp_path)} == {"a" * 32}
    monkeypatch.delenv(NONCE)
    assert Progress(tmp_path).nonce is None


def test_the_losses_of_an_epoch_are_in_the_line_that_ends_it(tmp_path):
    losses = {"epoch": 1, "train": 0.5, "validation": 0.25}
    progress = Progress(tmp_path)
    progress.phase("checkpoint", 10, 5, losses)
    progress.phase("step", 10, 5)
    assert [line["epoch_losses"] for line in lines(tmp_path)] == [losses, None]


def test_what_accounts_for_a_checkpoint_is_on_the_disk_before_it(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(lines(tmp_path)[-1]["done"]))
    progress = Progress(tmp_path)
    for phase, done in (("step", 1), ("checkpoint", 2), ("step", 3)):
        progress.phase(phase, total=9, done=done)
    assert synced == [2]


def test_at_most_a_line_a_second_with_the_longest_step(tmp_path, monkeypatch):
    progress = Progress(tmp_path)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress.phase("step", 100)
    for done, seconds in enumerate([0.3, 0.9, 0.2, 0.1], start=1):
        clock[0] += 0.3
        progress.step(done, seconds, loss=0.5, gradient_norm=1.5)
    progress.phase("validate")
    _, step, validate = lines(tmp_path)
    assert (step["done"], step["max_step_s"], step["loss"], step["gradient_norm"]) == (4, 0.9, 0.5, 1.5)
    assert validate["max_step_s"] is None


def test_nan_and_infinity_become_null(tmp_path, monkeypatch):
    progress = Progress(tmp_path)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress.phase("step")
    clock[0] += 2
    progress.step(1, 0.1, loss=math.nan, gradient_norm=math.inf)
    last = lines(tmp_path)[-1]
    assert last["loss"] is last["gradient_norm"] is None
    assert (finite(None), finite(2)) == (None, 2.0)


def test_device_memory(tmp_path):
    progress = Progress(tmp_path)
    progress.device_memory = lambda: (3, 4)
    progress.phase("init")
    memory = lines(tmp_path)[0]["memory"]
    assert (memory["device_allocated_bytes"], memory["device_reserved_bytes"]) == (3, 4)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    progress = Progress(None)
    progress.phase("step")
    progress.step(1, 2.0)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError):
        Progress(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["progress-0.jsonl", "position-0.bin", "stacks-0.txt"])
def test_nothing_is_written_through_a_link(name, tmp_path):
    (tmp_path / "own").write_bytes(b"own")
    (tmp_path / name).symlink_to("own")
    with pytest.raises(UserError, match="a link has the name"):
        Progress(tmp_path).phase("step")
    assert (tmp_path / "own").read_bytes() == b"own"


def test_an_unknown_phase_is_our_own_bug():
    with pytest.raises(ValueError, match="lunch"):
        Progress(None).phase("lunch")


def test_resident_memory():
    assert 1_000_000 < rss_bytes() < 2**40


def test_it_needs_the_standard_library_only():
    code = "import sys, vpoc.progress; sys.exit(any(m in sys.modules for m in ('torch', 'polars', 'numpy', 'click')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_work_stops_at_the_next_sign_of_progress(tmp_path):
    progress = Progress(tmp_path)
    progress.interrupt(15)
    with pytest.raises(Interrupted) as caught:
        progress.step(1, 0.1)
    assert (caught.value.signum, str(caught.value)) == (15, "SIGTERM")
    with pytest.raises(Interrupted):
        progress.phase("step")
    assert not (tmp_path / "progress-0.jsonl").exists()


def test_stacks_and_position_lie_beside_the_lines(tmp_path):
    for name in ("stacks-1.txt", "position-1.bin"):
        (tmp_path / name).write_text("what a process of earlier left, and it was long")
    with Progress(tmp_path, rank=1) as progress:
        progress.phase("step")
        progress.stage.at(3, 2)
        signal.raise_signal(signal.SIGUSR1)
        assert until(lambda: "in test_stacks_and_position" in (tmp_path / "stacks-1.txt").read_text(), 10)
    assert names(tmp_path) == ["position-1.bin", "progress-1.jsonl", "stacks-1.txt"]
    assert struct.unpack("<qq", (tmp_path / "position-1.bin").read_bytes()) == (3, 2)
    assert "earlier" not in (tmp_path / "stacks-1.txt").read_text()


def test_each_line_that_is_written_puts_off_the_stacks(tmp_path, monkeypatch):
    told, clock = [], [100.0]
    monkeypatch.setattr(stacks, "progressed", lambda: told.append(clock[0]))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = Progress(tmp_path)
    progress.phase("step", 100)
    for done in range(30):
        clock[0] += 0.1
        progress.step(done, 0.1)
    assert len(lines(tmp_path)) == len(told) == 1 + 2


def test_the_clock_of_the_lines_can_be_another(tmp_path):
    progress = Progress(tmp_path)
    progress.wall = lambda: 5.0
    progress.phase("step")
    assert lines(tmp_path)[0]["wall"] == 5.0
