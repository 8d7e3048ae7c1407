import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.files.run_files import HealthStep, Intent, Record, Scheduled
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.processes.run_processes import RUN_MARK, run_mark
from harness.slurm import hooks
from harness.slurm.hooks import end_job, installation, tell_in_output, why_drain
from harness.slurm.job_script import job_output

MakeStep = Callable[..., HealthStep]


def test_what_is_printed_installs_both_hooks() -> None:
    text = installation(Path("/shared/matrix/.venv/bin/matrix"), Path("/shared/my results"))
    assert "Prolog=/etc/slurm/rocm-matrix-prolog\nEpilog=/etc/slurm/rocm-matrix-epilog\n" in text
    assert "exec /shared/matrix/.venv/bin/matrix --results '/shared/my results' slurm-epilog\n" in text


def test_an_unhealthy_gpu_drains_its_node_once_and_again_when_the_next_probe_is_bad(
    tmp_path: Path, host: HostFacts, make_step: MakeStep
) -> None:
    results = Results(tmp_path)
    assert why_drain(results, host) is None
    append_steps(results, [make_step(gpu=0, good=False, detail="hung", at=2.0)])
    assert why_drain(results, host) == "GPU 0 is unhealthy: hung"
    assert why_drain(results, host) is None
    append_steps(results, [make_step(gpu=0, good=False, detail="hung", at=3.0)])
    assert why_drain(results, host) == "GPU 0 is unhealthy: hung"
    append_steps(results, [make_step(gpu=0, at=4.0)])
    assert why_drain(results, host) is None


def test_of_a_job_only_its_own_runs_are_ended(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    results, asked = Results(tmp_path), list[str]()
    for number in ("1", "2"):
        scheduled = Scheduled(scheduler="slurm", job=number, node="n1")
        results.begin(make_intent(f"r{number}", scheduled=scheduled))
    results.begin(make_intent("r3"))

    def executor_of(intent: Intent) -> None:
        asked.append(intent.run_id)

    assert end_job(results, "2", executor_of) == {}
    assert asked == ["r2"]


@pytest.mark.parametrize("run_id", ["r1", "../../../r2"])
def test_an_intent_that_names_another_run_than_its_folder_is_passed_over(
    tmp_path: Path, make_intent: Callable[..., Intent], run_id: str
) -> None:
    results, asked = Results(tmp_path), list[str]()
    intent = make_intent("r2", scheduled=Scheduled(scheduler="slurm", job="2", node="n1"))
    changed = intent.model_copy(update={"run_id": run_id})
    (results.begin(intent) / "intent.json").write_text(changed.model_dump_json(by_alias=True))

    def executor_of(intent: Intent) -> None:
        asked.append(intent.run_id)

    assert end_job(results, "2", executor_of) == {}
    assert asked == []


def test_what_is_reported_is_added_only_to_a_file_of_the_owner_that_is_there(
    tmp_path: Path, make_intent: Callable[..., Intent]
) -> None:
    results, elsewhere = Results(tmp_path / "results"), tmp_path / "elsewhere"
    results.begin(make_intent("r1"))
    results.begin(make_intent("r2"))
    output = job_output(results, "r1")
    output.parent.mkdir()
    elsewhere.mkdir()
    tell_in_output(results, "r1", "told")
    assert not output.exists()
    output.write_text("said")
    for run_id in ("r1", "../slurm/r1", "r3"):
        tell_in_output(results, run_id, "told")
    assert output.read_text() == "said\ntold\n"
    assert [file.name for file in output.parent.iterdir()] == ["r1.txt"]
    other = elsewhere / "r2.txt"
    other.write_text("another's")
    (output.parent / "r2.txt").hardlink_to(other)
    tell_in_output(results, "r2", "told")
    (output.parent / "r2.txt").unlink()
    (output.parent / "r2.txt").symlink_to(other)
    tell_in_output(results, "r2", "told")
    output.unlink()
    (output.parent / "r2.txt").unlink()
    output.parent.rmdir()
    output.parent.symlink_to(elsewhere)
    tell_in_output(results, "r2", "told")
    assert other.read_text() == "another's"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_what_is_reported_is_not_added_to_a_file_of_another_user(
    tmp_path: Path, make_intent: Callable[..., Intent]
) -> None:
    results = Results(tmp_path)
    results.begin(make_intent("r1"))
    output = job_output(results, "r1")
    output.parent.mkdir()
    output.write_text("another's")
    os.chown(output, 54321, 54321)
    tell_in_output(results, "r1", "told")
    assert output.read_text() == "another's"


def test_what_its_harness_could_not_kill_of_a_run_with_a_record_drains_its_node(
    tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path)
    monkeypatch.setattr(hooks, "end_run", lambda *_: False)
    for name, number in (("r1", "1"), ("r2", "2")):
        record = make_record(name, "host-fault", scheduled=Scheduled(scheduler="slurm", job=number, node="n1"))
        results.begin(record.intent)
        results.finish(record)
    left = [
        subprocess.Popen(["sleep", "100"], env={**os.environ, RUN_MARK: run_mark(results.run_folder(name))})
        for name in ("r1", "r2")
    ]
    try:
        told = end_job(results, "2", lambda _: None)
    finally:
        for process in left:
            process.kill()
            process.wait()
    # While its program is read from the disk it is in an uninterruptible wait, which is said, too.
    assert told.keys() == {"r2"}
    assert told["r2"].startswith(f"a process of the run cannot be killed: {left[1].pid} (sleep 100")


def test_an_unhealthy_gpu_drains_its_node_where_that_cannot_be_remembered(
    tmp_path: Path, host: HostFacts, make_step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("no folder can be made here")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    results = Results(tmp_path)
    append_steps(results, [make_step(gpu=0, good=False, detail="hung", at=2.0)])
    assert "GPU 0 is unhealthy: hung; this could not be saved" in (why_drain(results, host) or "")
