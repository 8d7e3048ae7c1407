"""Drills in containers: what happens to containers and their engine, and some of what happens in them."""

import gc
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.environments.executors.docker import LABEL
from harness.evidence.records import Results
from harness.faults.carry_out import make_drill, make_healthy, why_skipped
from harness.faults.kinds import KINDS, Drill
from harness.faults.place import Place, make_place
from harness.matrix.cells import Matrix

# Those that only containers have, and of the others one for each way that a run can end.
ALSO = ("hang-forward", "hold-gil", "segv", "fill-disk", "import-failure", "clock-back")
CHOSEN = [kind for kind in KINDS if kind.executors == ("docker",) or kind.name in ALSO]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, matrix: Matrix) -> Place:
    return make_place(Results(tmp_path_factory.mktemp("drills")), matrix, "docker", print)


@pytest.fixture(autouse=True)
def _sockets_go_while_their_warning_is_ignored() -> Iterator[None]:
    yield
    gc.collect()


# Docker's SDK leaves a socket open for each connection that is refused, as by an engine that was killed.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("kind", CHOSEN, ids=lambda kind: kind.name)
def test_a_fault_is_found_explained_and_survived(kind: Drill, place: Place) -> None:
    if why := why_skipped(kind, "docker"):
        if os.environ.get("REQUIRE_DOCKER"):
            pytest.fail(f"{why}, and REQUIRE_DOCKER is set")
        pytest.skip(why)
    # A healthy run follows only where the place itself was hurt: all others share the one below.
    one = make_drill(kind, place, next_run=kind.outside.needs_own_engine)
    assert one.objections == []
    assert one.record is not None
    assert one.record.intent.drill is not None


def test_after_a_drill_a_healthy_run_completes_in_the_same_place(place: Place) -> None:
    kill = next(kind for kind in KINDS if kind.name == "kill")
    assert make_drill(kill, place, next_run=False).right
    after = make_healthy(place)
    assert (after.outcome, after.drill) == ("completed", None), after.detail
    assert {record.outcome for record in place.results.records() if record.drill is None} == {"completed"}


def test_an_engine_of_its_own_leaves_nothing_and_lets_the_users_alone(place: Place) -> None:
    if why := why_skipped(next(kind for kind in KINDS if kind.name == "engine-restarted"), "docker"):
        pytest.skip(why)
    assert place.engine is not None
    before = bridges()
    with place.with_own_engine() as (here, own):
        assert here.engine is not None
        assert here.engine.address != place.engine.address
        assert len(bridges() - before) == 1
        own.kill()
        assert place.engine.client.ping()
    assert bridges() == before
    assert not Path(here.engine.address.removeprefix("unix://")).parent.exists()


@pytest.fixture
def anothers(place: Place, tmp_path: Path) -> Iterator[Any]:
    """A container of somebody whose run folder nobody else may look at."""
    assert place.engine is not None
    labels = {LABEL: str(tmp_path / "runs" / "anothers")}
    assert tmp_path.stat().st_mode & 0o077 == 0
    container = place.engine.client.containers.create(place.environment.image, labels=labels)
    yield container
    container.remove()


def test_an_ordinary_user_makes_drills_too_and_leaves_the_containers_of_others(ordinary: Any, anothers: Any) -> None:
    command = ordinary("drill", "hang-forward", "child-eats-memory", "fill-disk", "--json", group="docker")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    hang, memory, disk = json.loads(done.stdout)["drills"]
    assert hang["objections"] == memory["objections"] == []
    assert disk["skipped"] == "only root can mount a small disk"
    anothers.reload()


def bridges() -> set[str]:
    return {folder.parent.name for folder in Path("/sys/class/net").glob("*/bridge")}
