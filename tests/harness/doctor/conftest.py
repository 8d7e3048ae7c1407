from collections.abc import Callable
from pathlib import Path

import pytest

from harness.doctor.machine import Machine
from harness.doctor.read import read_machine
from harness.matrix.cells import Matrix


@pytest.fixture
def read(matrix: Matrix) -> Callable[[Path], Machine]:
    """Return a function that reads the machine below a root, for the project's own matrix."""
    return lambda root: read_machine(matrix, root)
