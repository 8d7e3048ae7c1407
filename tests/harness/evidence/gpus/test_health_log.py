import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.health_log import (
    append_steps,
    machines_with_bad_signs,
    proven_gpus,
    read_steps,
    unhealthy_gpus,
)
from harness.evidence.records import Results
from harness.host.facts import HostFacts

MakeStep = Callable[..., HealthStep]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def file_of(results: Results, host: HostFacts) -> Path:
    return results.folder / "health" / f"{host.machine}.jsonl"


def test_what_was_written_is_read_again(results: Results, host: HostFacts, make_step: MakeStep) -> None:
    steps = [make_step(gpu=0), make_step(gpu=1, good=False, detail="hung"), make_step(check="kernel-log", gpu=None)]
    append_steps(results, steps[:1])
    append_steps(results, steps[1:])
    assert list(read_steps(results, host.machine)) == steps
    assert list(read_steps(results)) == steps
    assert list(read_steps(results, "another")) == []


def test_a_line_that_was_torn_takes_no_other_with_it(results: Results, host: HostFacts, make_step: MakeStep) -> None:
    append_steps(results, [make_step(gpu=0)])
    with file_of(results, host).open("ab") as stream:
        stream.write(b'{"schema": 2, "machi')
    append_steps(results, [make_step(gpu=1)])
    with file_of(results, host).open("ab") as stream:
        stream.write(b"\xff\x00\n[]\n")
    append_steps(results, [make_step(gpu=2)])
    assert [step.gpu for step in read_steps(results)] == [0, 1, 2]


def test_a_log_of_any_size_is_searched_at_its_end(results: Results, host: HostFacts, make_step: MakeStep) -> None:
    append_steps(results, [make_step(good=False)])
    assert machines_with_bad_signs(results) == {host.machine}
    os.truncate(file_of(results, host), 1 << 40)
    append_steps(results, [make_step(good=True)])
    assert machines_with_bad_signs(results) == set()
    append_steps(results, [make_step(good=False)])
    assert machines_with_bad_signs(results) == {host.machine}


def test_several_harnesses_write_whole_lines(results: Results, make_step: MakeStep) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: append_steps(results, [make_step(gpu=n, detail="x" * 10_000)]), range(40)))
    assert sorted(step.gpu or 0 for step in read_steps(results)) == list(range(40))


def test_a_folder_that_cannot_be_written_is_reported_in_a_line(tmp_path: Path, make_step: MakeStep) -> None:
    (tmp_path / "health").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        append_steps(Results(tmp_path), [make_step()])


def unhealthy(results: Results, host: HostFacts, *steps: HealthStep) -> dict[int, str]:
    append_steps(results, steps)
    return unhealthy_gpus(results, host)


def test_no_folder_no_unhealthy_gpu(results: Results, host: HostFacts) -> None:
    assert unhealthy_gpus(results, host) == {}
    assert not results.folder.exists()


def test_the_last_probe_decides_for_each_gpu(results: Results, host: HostFacts, make_step: MakeStep) -> None:
    bad = make_step(gpu=1, good=False, detail="hung")
    assert unhealthy(results, host, make_step(gpu=0), make_step(gpu=1), bad) == {1: "hung"}
    assert unhealthy(results, host, make_step(gpu=0)) == {1: "hung"}
    assert unhealthy(results, host, make_step(gpu=1)) == {}


@pytest.mark.parametrize(
    "other",
    [
        {"good": None},
        {"check": "memory"},
        {"check": "reset"},
        {"check": "kernel-log", "gpu": None},
        {"boot_id": "an earlier boot"},
        {"machine": "another"},
    ],
)
def test_nothing_else_makes_or_lifts_it(
    other: dict[str, Any], results: Results, host: HostFacts, make_step: MakeStep
) -> None:
    assert unhealthy(results, host, make_step(**{"gpu": 1, "good": False, **other})) == {}
    assert unhealthy(results, host, make_step(gpu=1, good=False, detail="hung")) == {1: "hung"}
    assert unhealthy(results, host, make_step(**{"gpu": 1, "good": True, **other})) == {1: "hung"}


def test_a_new_boot_lifts_it(results: Results, host: HostFacts, make_step: MakeStep) -> None:
    append_steps(results, [make_step(gpu=1, good=False)])
    assert unhealthy_gpus(results, host.model_copy(update={"boot_id": "the next boot"})) == {}


def test_an_environment_is_proven_where_it_passed(results: Results, host: HostFacts, make_step: MakeStep) -> None:
    append_steps(results, [make_step(gpu=0, environment="mine"), make_step(gpu=1, environment="another")])
    append_steps(results, [make_step(gpu=2, environment="mine", good=False)])
    assert proven_gpus(results, host, "mine") == {0}
    append_steps(results, [make_step(gpu=0, environment="mine", good=False)])
    assert proven_gpus(results, host, "mine") == {0}
