"""Tests of `kill -9` of `matrix run` with containers: no run is lost, and no container is left.

A stand-in replaces the app; `make bench-kills` kills with the real one.
"""

import io
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.kill_tester import GOAL_SECONDS, Figures, Kill, kill_often
from harness.environments.docker.images import Image
from harness.environments.executors.docker import LABEL, DockerExecutor
from harness.host.engine import Engine

# The first containers are those of the check of the image and of the data.
POINTS = ("container-created@3", "record-begins", "orphan-ended")
# Points between the first two of those above.
ALSO = ("job-started@3", "job-noted@3")
READS = """
import os, signal, sys
from harness.environments.docker.image_tree import image_files
from harness.environments.docker.images import Image
from harness.host.engine import find_engine
with image_files(find_engine(), Image(sys.argv[1], {}, (), 0)) as files:
    next(iter(files))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("points", [POINTS, pytest.param(ALSO, marks=pytest.mark.long)])
def test_nothing_is_lost_and_no_container_is_left(
    engine: Engine, small_base: str, small_images: dict[str, Image], points: tuple[str, ...]
) -> None:
    assert small_images
    figures = Figures()
    kill_often([Kill(point) for point in points], figures, engine, small_base)
    assert figures.wrong == []
    assert [point for point in points if not figures.kills[point]] == []
    # Here the limit is generous; `make bench-kills` measures the goal itself on a quiet machine.
    assert max(figures.restart_seconds) < 12 * GOAL_SECONDS


def test_the_container_of_an_image_that_was_being_read_goes_with_the_next_command(
    engine: Engine, tmp_path: Path
) -> None:
    """`matrix verify` reads the files of an image through a container that is created but never started."""
    api, archive = engine.client.api, io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        made.addfile(tarfile.TarInfo("file"))
    image = json.loads(api.import_image_from_data(archive.getvalue()))["status"]
    try:
        done = subprocess.run([sys.executable, "-c", READS, image], check=False)
        assert done.returncode == -signal.SIGKILL
        left = api.containers(all=True, filters={"ancestor": image})
        assert [LABEL in one["Labels"] for one in left] == [True]
        DockerExecutor(engine, tmp_path).remove_leftovers(lambda _: None)
        assert api.containers(all=True, filters={"ancestor": image}) == []
    finally:
        for one in api.containers(all=True, filters={"ancestor": image}):
            api.remove_container(one["Id"], force=True)
        api.remove_image(image)
