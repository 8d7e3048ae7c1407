"""Tests of which hosts may have runs of one GPU each side by side."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.doctor.machine import Machine
from harness.doctor.read import read_machine
from harness.doctor.side_by_side import why_not_side_by_side
from harness.host.simulated import GIB, dual_7900xt
from harness.matrix.cells import Matrix

BOTH = (0, 1)


@pytest.fixture
def machine(tmp_path: Path, matrix: Matrix) -> Machine:
    """Return a host with two GPUs in slots of the processor, and without a screen."""
    host = dual_7900xt(tmp_path / "root")
    host.connect(host.gpus[0], "DP-1", "disconnected")
    return read_machine(matrix, tmp_path / "root")


def test_two_cards_without_a_screen_in_slots_of_their_own(machine: Machine) -> None:
    assert [gpu.card.root_port for gpu in machine.gpus if gpu.card] == ["0000:00:01.1", "0000:40:01.1"]
    assert why_not_side_by_side(machine, BOTH) is None


def test_one_gpu_alone(machine: Machine) -> None:
    assert why_not_side_by_side(machine, (1,)) == "there is one GPU to run on"


def test_a_screen(tmp_path: Path, matrix: Matrix) -> None:
    dual_7900xt(tmp_path / "root")
    assert why_not_side_by_side(read_machine(matrix, tmp_path / "root"), BOTH) == "a screen is connected to GPU 0"


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("0000:00:01.1", "GPU 0 and GPU 1 are behind one root port (0000:00:01.1)"),
        (None, "it is not known which root ports the GPUs are behind"),
    ],
)
def test_a_port_that_is_shared_or_not_known(machine: Machine, port: str | None, said: str) -> None:
    gpus = tuple(replace(gpu, card=replace(gpu.card, root_port=port)) for gpu in machine.gpus if gpu.card)
    assert why_not_side_by_side(replace(machine, gpus=gpus), BOTH) == said


def test_too_little_memory_for_two(machine: Machine) -> None:
    host = machine.host.model_copy(update={"memory_bytes": 16 * GIB})
    said = why_not_side_by_side(replace(machine, host=host), BOTH)
    assert said == "the host has 16 GiB of memory, 2 runs are given 24"
