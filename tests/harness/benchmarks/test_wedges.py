"""A campaign of eight hours, in which a GPU stops answering three times. The clock is simulated, the code is real."""

import pytest

from benchmarks.wedges import Remedy, share_settled
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("remedy", ["reset", "reboot"])
def test_three_wedges_leave_nine_tenths_of_the_plan(remedy: Remedy, matrix: Matrix, dual_host: HostFacts) -> None:
    # The runs that were hit have no answer.
    assert 0.9 <= share_settled(matrix, dual_host, remedy, 0) < 1


def test_gpus_that_nothing_helps_cost_more(matrix: Matrix, dual_host: HostFacts) -> None:
    assert share_settled(matrix, dual_host, "none", 0) < 0.9
