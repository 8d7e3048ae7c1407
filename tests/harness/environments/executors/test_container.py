"""Tests of the limits of a container."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from requests.exceptions import ConnectionError as Unreachable

from harness.environments.executors.container import Container
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.job import Job, JobLost
from harness.environments.executors.pids import pids_limit
from tests.harness.environments.executors.engine_stand_in import RUNNING, Api

if TYPE_CHECKING:
    from harness.host.engine import Engine


def test_the_limits_of_a_container_are_given_to_the_engine_and_shown_alike() -> None:
    container = Container("image", 1, 2, "/work", pids=5000)
    arguments = container.create_arguments()
    assert arguments["pids_limit"] == container.plain["pids"] == 5000
    assert int(arguments["log_config"]["Config"]["max-size"]) * int(arguments["log_config"]["Config"]["max-file"]) < 1e8
    shown = container.command_line({}, ("train",))
    assert "--pids-limit 5000 " in shown
    assert "--log-driver json-file --log-opt max-size=" in shown


@pytest.mark.parametrize(("cores", "ranks", "expected"), [(2, 1, 1024), (16, 1, 1024), (17, 1, 1088), (64, 8, 32768)])
def test_a_container_has_room_for_the_threads_of_every_rank(cores: int, ranks: int, expected: int) -> None:
    assert pids_limit(cores, ranks) == expected


def test_a_container_is_not_given_the_proxies_of_the_docker_command(tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def create(**arguments: Any) -> None:
        given.update(arguments)
        raise Unreachable

    client = SimpleNamespace(api=Api(RUNNING), containers=SimpleNamespace(create=create))
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client)), tmp_path)
    container = Container("image", 0, 0, str(tmp_path))
    with pytest.raises(JobLost):
        executor.start(Job(("true",), {}, tmp_path, tmp_path / "log.txt", container))
    # By default docker-py adds these proxies, with any password that an address contains.
    assert given["use_config_proxy"] is False


def test_no_program_of_the_image_is_started_beside_the_run() -> None:
    container = Container("image", 0, 0, "/work")
    assert container.create_arguments()["healthcheck"] == {"test": ["NONE"]}
    assert "--no-healthcheck" in container.command_line({}, ()).split()


def test_a_run_leaves_no_core_dump_which_the_host_may_keep_outside_of_its_folder() -> None:
    container = Container("image", 0, 0, "/work")
    assert {"Name": "core", "Soft": 0, "Hard": 0} in container.create_arguments()["ulimits"]
    assert "--ulimit core=0:0 " in container.command_line({}, ())


def test_where_the_hosts_memory_runs_out_a_run_is_killed_before_anything_else() -> None:
    container = Container("image", 0, 0, "/work")
    assert container.create_arguments()["oom_score_adj"] == 1000
    assert "--oom-score-adj 1000 " in container.command_line({}, ())
