"""Tests of what two harnesses on one host, each with its own results folder, share about the health of GPUs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.files.run_files import HealthStep
from harness.evidence.gpus.health_log import append_steps, read_steps, unhealthy_gpus
from harness.evidence.records import Results
from harness.host.facts import HostFacts

MakeStep = Callable[..., HealthStep]


@pytest.fixture
def one(tmp_path: Path) -> Results:
    return Results(tmp_path / "one")


@pytest.fixture
def other(tmp_path: Path) -> Results:
    return Results(tmp_path / "other")


def test_a_gpu_that_one_found_unhealthy_is_known_to_the_other_until_a_later_probe_is_good(
    one: Results, other: Results, host: HostFacts, make_step: MakeStep
) -> None:
    append_steps(other, [make_step(gpu=0, at=1.0)])
    append_steps(one, [make_step(gpu=0, good=False, detail="hung", at=2.0)])
    assert unhealthy_gpus(other, host) == {0: "hung"}
    # The other log does not get the step: only the log beside a run has the steps of that run.
    assert [step.good for step in read_steps(other)] == [True]
    append_steps(other, [make_step(gpu=0, at=3.0)])
    assert unhealthy_gpus(one, host) == unhealthy_gpus(other, host) == {}


def test_what_was_found_before_is_no_news(one: Results, other: Results, host: HostFacts, make_step: MakeStep) -> None:
    append_steps(one, [make_step(gpu=0, good=False, at=2.0)])
    append_steps(other, [make_step(gpu=0, at=3.0)])
    assert unhealthy_gpus(other, host) == {}


def test_another_boot_machine_or_simulated_host_is_another_matter(
    one: Results, other: Results, host: HostFacts, make_step: MakeStep
) -> None:
    append_steps(one, [make_step(gpu=0, good=False)])
    for changes in ({"boot_id": "next"}, {"machine": "another"}, {"simulated": True}):
        assert unhealthy_gpus(other, host.model_copy(update=changes)) == {}
    state = Path(os.environ["XDG_STATE_HOME"])
    append_steps(one, [make_step(gpu=0, boot_id="next")])
    assert [file.name for file in state.rglob("*.jsonl")] == [f"{host.machine}.next.jsonl"]


def test_where_it_cannot_be_written_or_read_the_own_log_alone_counts(
    one: Results, other: Results, host: HostFacts, make_step: MakeStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    append_steps(one, [make_step(gpu=0, good=False, detail="hung")])
    assert unhealthy_gpus(one, host) == {0: "hung"}
    assert unhealthy_gpus(other, host) == {}


def test_damaged_lines_are_passed_over(one: Results, other: Results, host: HostFacts, make_step: MakeStep) -> None:
    append_steps(one, [make_step(gpu=0, good=False, detail="hung")])
    (file,) = Path(os.environ["XDG_STATE_HOME"]).rglob("*.jsonl")
    file.write_bytes(b'{"schema": 2, "machi\xff\n' + file.read_bytes() + b"[]")
    assert unhealthy_gpus(other, host) == {0: "hung"}


def test_a_clock_that_was_set_back_hides_no_later_probe(
    one: Results, other: Results, host: HostFacts, make_step: MakeStep
) -> None:
    append_steps(one, [make_step(gpu=0, at=9000.0)])
    append_steps(one, [make_step(gpu=0, good=False, detail="hung", at=5.0)])
    assert unhealthy_gpus(one, host) == unhealthy_gpus(other, host) == {0: "hung"}
    append_steps(other, [make_step(gpu=0, at=2.0)])
    assert unhealthy_gpus(one, host) == unhealthy_gpus(other, host) == {}


def test_nobody_waits_for_a_pipe_in_its_place(
    one: Results, other: Results, host: HostFacts, make_step: MakeStep
) -> None:
    append_steps(one, [make_step(gpu=0, at=1.0)])
    (file,) = Path(os.environ["XDG_STATE_HOME"]).rglob("*.jsonl")
    file.unlink()
    os.mkfifo(file)
    append_steps(one, [make_step(gpu=0, good=False, detail="hung", at=2.0)])
    assert unhealthy_gpus(one, host) == {0: "hung"}
    assert unhealthy_gpus(other, host) == {}
