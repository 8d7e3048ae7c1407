"""Tests of containers on the nodes of a real Slurm; the nodes share an engine, which has no images at first."""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.files.shared_locks import open_shared_lock
from harness.environments.docker.images import Image
from harness.environments.docker.node_images import lock_of_image
from harness.environments.executors.docker import LABEL
from harness.evidence.records import Results
from harness.faults.own_engine import own_engine, why_no_own_engine
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.registry.push_pull import built_image, push_image, remote_name
from harness.registry.saved import save as save_of_cells
from harness.registry.saved.layout import ImageFolder
from tests.images.conftest import serve_registry
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.stand_in_images import CELL, built, engine_here, write_matrix
from tests.slurm.test_slurm import Campaign, note_as_known, wait

TASK_PROLOG = "#!/bin/sh\necho export DOCKER_HOST={}\n"


@dataclass(frozen=True)
class Nodes:
    """A cluster, the engine of its nodes, and the engine of the host on which the commands are given."""

    slurm: Cluster
    engine: Engine
    here: Engine

    def brought(self, since: float) -> list[str]:
        """Return the events by which images were loaded or pulled since then."""
        events = self.engine.client.events(since=since, until=time.time(), decode=True, filters={"type": "image"})
        return [event["Action"] for event in events if event["Action"] in ("load", "pull")]

    def remove_images(self) -> None:
        for image in self.engine.client.api.images():
            self.engine.client.api.remove_image(image["Id"], force=True)


@pytest.fixture(scope="module")
def nodes(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    # Use the fixture, so that the test is skipped where Slurm is missing.
    assert slurm.nodes
    here = engine_here(why_no_own_engine())
    folder = tmp_path_factory.mktemp("nodes")
    with own_engine() as own:
        engine = own.start()
        prolog = folder / "task-prolog"
        prolog.write_text(TASK_PROLOG.format(engine.address))
        prolog.chmod(0o755)
        with cluster(folder / "slurm", 2, 0, more=f"TaskProlog={prolog}") as running:
            yield Nodes(running, engine, here)


@pytest.fixture
def campaign(nodes: Nodes, tmp_path: Path) -> Iterator[Campaign]:
    """Yield a campaign of containers; it finds the images in `saved`, unless the matrix file says otherwise."""
    (tmp_path / "bars.csv").write_text(STAND_IN_BARS)
    (tmp_path / "saved").mkdir(exist_ok=True)
    nodes.remove_images()
    yield ContainerCampaign(tmp_path, 2, ("--on", "lab"), {**nodes.slurm.environment})
    assert nodes.engine.client.containers.list(all=True, filters={"label": LABEL}) == []


class ContainerCampaign(Campaign):
    """A campaign of the stand-in's cell in containers."""

    @property
    def command(self) -> list[str]:
        return [
            {"host-plain": CELL, "process": "docker"}.get(word, word)
            for word in super().command
            if word not in ("--python", "python")
        ]


@pytest.fixture
def image(nodes: Nodes, tmp_path: Path) -> Iterator[Image]:
    matrix = write_matrix(tmp_path, f"{tmp_path}/saved")
    with built(nodes.here, matrix, tmp_path / "context") as made:
        yield made


def save(engine: Engine, matrix: Matrix, place: Path) -> ImageFolder:
    with pytest.MonkeyPatch.context() as patch:
        # The packages of the lock are not installed in the stand-in, so statements about them cannot be made.
        patch.setattr(save_of_cells, "statements_of_image", lambda *_: [])
        save_of_cells.save_cells(engine, [matrix.cells[CELL]], place / "saved", lambda _: None)
    return ImageFolder(place / "saved")


@pytest.fixture
def saved(nodes: Nodes, image: Image, tmp_path: Path) -> ImageFolder:
    """Save the image and return the folder in which campaigns find it."""
    return save(nodes.here, write_matrix(tmp_path, f"{tmp_path}/saved"), tmp_path)


def said_by(campaign: Campaign) -> str:
    return " ".join((campaign.place / "said.txt").read_text().split())


def run_two_at_once(nodes: Nodes, campaign: Campaign, image: Image) -> None:
    """Run two jobs that need the image; neither may look for it before the other waits for it too."""
    note_as_known(campaign.results, nodes.slurm.nodes)

    def waiting() -> int:
        files = (campaign.results.folder / "slurm").glob(f"*{CELL}*.txt")
        return sum("waiting for another process" in file.read_text() for file in files)

    with held_lock(image):
        campaign.start()
        wait(lambda: waiting() == 2)
    assert campaign.finish() == 0, said_by(campaign)


@contextmanager
def held_lock(image: Image) -> Iterator[None]:
    descriptor = open_shared_lock(lock_of_image(image.id))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def assert_ran_in(image: Image, results: Results) -> None:
    records = list(results.records())
    told = {(one.outcome, one.intent.executor, one.intent.image, one.intent.verifier_image) for one in records}
    assert told == {("completed", "docker", image.id, image.id)}, [one.detail for one in records]
    assert len(records) == 2
    assert all(one.verified for one in records)


@pytest.mark.usefixtures("saved")
def test_two_jobs_at_once_on_a_host_load_a_saved_image_once(nodes: Nodes, campaign: Campaign, image: Image) -> None:
    began = time.time()
    run_two_at_once(nodes, campaign, image)
    assert_ran_in(image, campaign.results)
    assert nodes.brought(began) == ["load"]


@pytest.mark.long
def test_two_jobs_at_once_on_a_host_pull_an_image_once_by_its_digest(
    nodes: Nodes, campaign: Campaign, image: Image, tmp_path: Path
) -> None:
    storage = tmp_path / "registry"
    storage.mkdir()
    with serve_registry(storage, storage / "settings.yml") as (host, _):
        matrix = write_matrix(tmp_path, f"{host}/me")
        name = remote_name(f"{host}/me", matrix.cells[CELL])
        digest = push_image(nodes.here, built_image(nodes.here, matrix.cells[CELL]).id, name, print)
        began = time.time()
        run_two_at_once(nodes, campaign, image)
    assert_ran_in(image, campaign.results)
    assert nodes.brought(began) == ["pull"]
    assert nodes.engine.client.images.get(f"{name.rpartition(':')[0]}@{digest}")
    nodes.here.client.api.remove_image(name, force=True)


def test_an_image_that_is_not_in_the_source_is_missed_before_any_job(
    nodes: Nodes, campaign: Campaign, image: Image, tmp_path: Path
) -> None:
    campaign.start()
    assert campaign.finish() == 1
    assert f"the image of {CELL} that is here is not there; `" in said_by(campaign)
    assert f" save {CELL} {tmp_path / 'saved'}` puts it there" in said_by(campaign)
    assert not list((campaign.results.folder / "slurm").glob(f"*{CELL}*"))


@pytest.mark.long
def test_an_image_that_nodes_cannot_load_ends_with_records_that_say_so(
    campaign: Campaign, image: Image, saved: ImageFolder
) -> None:
    layer = saved.file(str(saved.images()[0].layers[0]["digest"]))
    layer.write_bytes(layer.read_bytes()[:-1])
    campaign.start()
    assert campaign.finish() == 2
    records = list(campaign.results.records())
    assert {(one.outcome, one.diagnosis, one.intent.image) for one in records} == {
        ("host-fault", "not-begun", image.id)
    }
    assert all(f"{layer}: was changed or is damaged" in one.detail for one in records)
    assert re.search(rf"no node is left that can begin runs: .* save {CELL} \S+` puts it there", said_by(campaign))
    assert 3 <= len(records) <= 6
