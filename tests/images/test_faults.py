"""Tests of faults injected into containers: faults of containers and their engine, and some inside containers."""

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
from harness.faults.inject import inject_fault, why_skipped
from harness.faults.kinds import KINDS, FaultKind
from harness.faults.target import InjectionTarget, make_target
from harness.matrix.cells import Matrix

# Besides the faults that only containers have: one for each way in which a run can end.
ALSO = ("hang-forward", "hold-gil", "segv", "fill-disk", "import-failure", "clock-back")
# test_watch.py has a hang. Other faults are found by the same code as in processes (tests/system), or resemble these.
ON_EACH_CHANGE = ("segv", "child-eats-memory", "container-removed")
CHOSEN = [
    pytest.param(kind, id=kind.name, marks=[] if kind.name in ON_EACH_CHANGE else [pytest.mark.long])
    for kind in KINDS
    if kind.executors == ("docker",) or kind.name in ALSO
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, matrix: Matrix) -> InjectionTarget:
    return make_target(Results(tmp_path_factory.mktemp("faults")), matrix, "docker", print)


@pytest.fixture(autouse=True)
def _sockets_go_while_their_warning_is_ignored() -> Iterator[None]:
    yield
    gc.collect()


# Docker's SDK leaves a socket open for each refused connection, such as to an engine that was killed.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("kind", CHOSEN)
def test_a_fault_is_found_explained_and_survived(kind: FaultKind, target: InjectionTarget) -> None:
    if why := why_skipped(kind, "docker"):
        if os.environ.get("REQUIRE_DOCKER"):
            pytest.fail(f"{why}, and REQUIRE_DOCKER is set")
        pytest.skip(why)
    # A healthy run follows only if the fault damaged the target itself.
    one = inject_fault(kind, target, next_run=kind.external.needs_own_engine)
    assert one.objections == []
    assert one.record is not None
    assert one.record.intent.injected_fault is not None


@pytest.mark.long
def test_an_engine_of_its_own_leaves_nothing_and_lets_the_users_alone(target: InjectionTarget) -> None:
    if why := why_skipped(next(kind for kind in KINDS if kind.name == "engine-restarted"), "docker"):
        pytest.skip(why)
    assert target.engine is not None
    before = bridges()
    with target.with_own_engine() as (here, own):
        assert here.engine is not None
        assert here.engine.address != target.engine.address
        assert len(bridges() - before) == 1
        own.kill()
        assert target.engine.client.ping()
    assert bridges() == before
    assert not Path(here.engine.address.removeprefix("unix://")).parent.exists()


@pytest.fixture
def other_users_container(target: InjectionTarget, tmp_path: Path) -> Iterator[Any]:
    """Yield a container of another user, whose run folder no other user may read."""
    assert target.engine is not None
    labels = {LABEL: str(tmp_path / "runs" / "anothers")}
    assert tmp_path.stat().st_mode & 0o077 == 0
    container = target.engine.client.containers.create(target.bench.environment(target.cell).image, labels=labels)
    yield container
    container.remove()


@pytest.mark.long
def test_an_ordinary_user_injects_faults_too_and_leaves_the_containers_of_others(
    ordinary: Any, other_users_container: Any
) -> None:
    command = ordinary("inject", "hang-forward", "child-eats-memory", "fill-disk", "--json", group="docker")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    hang, memory, disk = json.loads(done.stdout)["injections"]
    assert hang["objections"] == memory["objections"] == []
    assert disk["skipped"] == "only root can mount a small disk"
    other_users_container.reload()


def bridges() -> set[str]:
    return {folder.parent.name for folder in Path("/sys/class/net").glob("*/bridge")}
