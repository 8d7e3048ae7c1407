import signal
import struct
import subprocess
import sys

from vpoc.step_stage import BACKWARD, EXCHANGE, FORWARD, OUTSIDE, UPDATE, WAITING, StepStage


def test_the_file_has_step_and_stage(tmp_path):
    path = tmp_path / "position-0.bin"
    position = StepStage(path)
    assert path.read_bytes() == bytes(16)
    for step, stage in ((1, WAITING), (1, FORWARD), (2**40, UPDATE), (2**40, OUTSIDE)):
        position.at(step, stage)
        assert struct.unpack("<qq", path.read_bytes()) == (step, stage)


def test_stages_have_the_numbers_a_watcher_knows():
    assert (OUTSIDE, WAITING, FORWARD, BACKWARD, EXCHANGE, UPDATE) == (0, 1, 2, 3, 4, 5)


def test_what_an_earlier_process_left_is_gone(tmp_path):
    path = tmp_path / "position-0.bin"
    path.write_bytes(b"\7" * 5000)
    StepStage(path)
    assert path.read_bytes() == bytes(16)


def test_no_stage_is_ever_seen_with_the_number_of_another_step():
    seen = []

    class Noted(list):
        def __setitem__(self, place, value):
            super().__setitem__(place, value)
            seen.append(tuple(self))

    position = StepStage()
    position._numbers = Noted([0, 0])
    told = [(1, WAITING), (1, UPDATE), (2, WAITING), (2, FORWARD), (1, OUTSIDE), (3, UPDATE), (7, EXCHANGE)]
    for step, stage in told:
        position.at(step, stage)
    assert {place for place in seen if place[1] != OUTSIDE} <= set(told)
    assert seen[-1] == told[-1]


def test_it_is_there_after_a_kill(tmp_path):
    path = tmp_path / "position-3.bin"
    code = (
        "import os, signal, sys; from pathlib import Path; from vpoc.step_stage import StepStage; "
        "StepStage(Path(sys.argv[1])).at(5, 3); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -signal.SIGKILL
    assert struct.unpack("<qq", path.read_bytes()) == (5, 3)
