import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
sys.path[:0] = [str(CHECKOUT)]


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    """Prepare arrays of 26 sessions for trainings of 4 steps, and return their file."""
    from benchmarks.gpu_evidence.prepare import prepare  # noqa: PLC0415

    path = tmp_path_factory.mktemp("gpu-evidence") / "arrays.npz"
    prepare(path, 26, 4)
    return path
