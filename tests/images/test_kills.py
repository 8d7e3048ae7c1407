"""`kill -9` of `matrix run` where its runs are containers of the real app: nothing is lost, no container is left."""

import pytest

from benchmarks.kill_tester import GOAL_SECONDS, Figures, Kill, kill_often
from harness.environments.images import Image
from harness.host.engine import Engine

POINTS = ("container-created", "record-begins", "orphan-ended")
# Between the first two of those above.
ALSO = ("job-started", "job-noted")


@pytest.mark.parametrize("points", [POINTS, pytest.param(ALSO, marks=pytest.mark.long)])
def test_nothing_is_lost_and_no_container_is_left(
    engine: Engine, images: dict[str, Image], points: tuple[str, ...]
) -> None:
    figures = Figures()
    kill_often([Kill(point) for point in points], figures, engine)
    assert figures.wrong == []
    assert [point for point in points if not figures.kills[point]] == []
    # The goal itself is measured by `make bench-kills`, on a quiet machine.
    assert max(figures.ready) < 12 * GOAL_SECONDS
