import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.environments.environment import Environment
from harness.environments.executors.container import DeviceNode
from harness.environments.executors.job import Exit, Job, JobLost
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_folder import RunFolder
from harness.host.facts import HostFacts
from harness.host.processes.run_processes import processes_of_run
from harness.matrix.cells import Matrix
from harness.run import gpu_probe
from harness.run.gpu_probe import PROBE_CHECKS, Probed, probe_gpu, read_answer
from harness.run.requested_run import Run
from harness.run.spec import RunSpec, resolve_run
from tests.harness.gpu_tree import a_gpu

GPU = a_gpu(1)


def answer(**broken: str) -> str:
    """Return the output of `vpoc probe --json`; `broken` has the outcomes of checks that did not pass."""
    outcomes = {check: broken.get(check.replace("-", "_"), "passed") for check in PROBE_CHECKS}
    checks = [{"check": c, "outcome": o, "detail": f"{c} told", "killable": True} for c, o in outcomes.items()]
    breaks = next((check for check, outcome in outcomes.items() if outcome not in ("passed", "skipped")), None)
    return json.dumps({"schema": 2, "device": "cuda", "breaks_at": breaks, "checks": checks}, indent=2)


def read(tmp_path: Path, text: str) -> Probed:
    log = tmp_path / "probe.txt"
    log.write_text(text)
    return read_answer(log)


def test_a_gpu_is_well_when_every_check_passed(tmp_path: Path) -> None:
    assert read(tmp_path, f"a warning\n{answer()}\n") == Probed(True, "5 checks passed")


def test_an_app_of_schema_1_is_read_too(tmp_path: Path) -> None:
    former = answer(device="hung").replace('"checks"', '"rungs"').replace('"check"', '"rung"')
    assert '"rung": "copy"' in former
    assert read(tmp_path, former) == Probed(False, "device hung: 'device told'")


@pytest.mark.parametrize("outcome", ["failed", "wrong-result", "crashed", "hung"])
def test_a_check_that_breaks_says_where(outcome: str, tmp_path: Path) -> None:
    probed = read(tmp_path, answer(matmul_fp32=outcome, optimizer_step="skipped"))
    assert probed == Probed(False, f"matmul-fp32 {outcome}: 'matmul-fp32 told'")


def test_where_torch_cannot_be_imported_nothing_is_said_of_the_gpu(tmp_path: Path) -> None:
    probed = read(tmp_path, answer(**{"import": "failed"}))
    assert (probed.good, probed.detail) == (None, "import failed: 'import told'")


def test_checks_that_were_left_out_prove_nothing(tmp_path: Path) -> None:
    probed = read(tmp_path, answer(copy="skipped"))
    assert (probed.good, probed.detail) == (None, "only 4 of 5 checks were made")


def test_a_process_that_could_not_be_killed_is_reported(tmp_path: Path) -> None:
    text = answer(device="hung").replace('"killable": true', '"killable": false', 2)
    assert not read(tmp_path, text).killable


@pytest.mark.parametrize("text", ["", "Segmentation fault\n", "{}", '{"checks": [], "breaks_at": 3}'])
def test_an_answer_that_is_none_says_nothing(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text).good is None


def test_of_an_answer_without_end_no_values_are_made(tmp_path: Path) -> None:
    text = f'{{"breaks_at": null, "checks": [{",".join(["{}"] * 70_000)}]}}'
    read(tmp_path, "{}")
    tracemalloc.start()
    try:
        probed = read(tmp_path, text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (probed.good, peak < 6 << 20) == (None, True)


MakeRun = Callable[[str], tuple[RunSpec, Path, ProcessExecutor]]


def a_run(python: Path, matrix: Matrix, host: HostFacts, **changes: Any) -> Run:
    environment = Environment(python, {"lock": "l"}, {}, "cuda", **changes)
    cell = matrix.cells["rocm6.3-torch2.9.1-no-sdma"]
    data = InputFile(path="/bars.csv", sha256="a" * 64)
    return Run("r1", cell, matrix.workloads["quick"], data, environment, host, gpus=(0, 1))


@pytest.fixture
def make_run(tmp_path: Path, matrix: Matrix, dual_host: HostFacts) -> Iterator[MakeRun]:
    """Return a function that makes a run on both GPUs, with a script as its interpreter, and the run's folder."""
    folder = tmp_path / "runs" / "r1"

    def make(script: str) -> tuple[RunSpec, Path, ProcessExecutor]:
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{script}\n")
        python.chmod(0o755)
        folder.mkdir(parents=True)
        RunFolder(folder).make_places()
        return resolve_run(a_run(python, matrix, dual_host), RunFolder(folder)), folder, ProcessExecutor()

    yield make
    RunFolder(folder).remove_places(all_of_it=False)


def test_only_that_gpu_is_seen_and_the_preset_is_not(make_run: MakeRun) -> None:
    spec, folder, executor = make_run("print(sys.argv[1:], dict(os.environ), file=open('seen.txt', 'w'))")
    probe_gpu(spec, GPU, executor)
    seen = (folder / "work" / "seen.txt").read_text()
    assert "'-m', 'vpoc', 'probe', '--device', 'cuda', '--json', '--limit-scale', '0.5', '--check', 'import'" in seen
    assert "'ROCR_VISIBLE_DEVICES': '1'" in seen
    assert "HSA_ENABLE_SDMA" not in seen


class Refusing(ProcessExecutor):
    """An executor that keeps the job it is given and refuses it, like an engine that is gone."""

    job: Job | None = None

    def start(self, job: Job) -> Any:
        self.job = job
        raise JobLost("the Docker engine does not answer")


def test_a_container_gets_the_nodes_of_that_gpu_alone(tmp_path: Path, matrix: Matrix, dual_host: HostFacts) -> None:
    run = a_run(Path("/opt/venv/bin/python"), matrix, dual_host, image="sha256:1")
    nodes = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
    run = replace(run, devices=tuple(DeviceNode(node, node, 44) for node in nodes))
    executor = Refusing()
    probed = probe_gpu(resolve_run(run, RunFolder(tmp_path)), GPU, executor)
    assert (probed.good, probed.detail) == (None, "the probe could not be started: the Docker engine does not answer")
    job = executor.job
    assert job is not None
    assert job.container is not None
    assert [device.inside for device in job.container.devices] == ["/dev/kfd", "/dev/dri/renderD129"]
    assert not any("VISIBLE" in name for name in job.variables)
    # The image sets the preset's variables, so the command has to unset them.
    assert job.arguments[:3] == ("/usr/bin/env", "--unset", "HSA_ENABLE_SDMA")


def test_what_it_printed_is_judged_and_kept(make_run: MakeRun) -> None:
    spec, folder, executor = make_run(f"print({answer()!r})")
    assert probe_gpu(spec, GPU, executor).good
    assert probe_gpu(spec, GPU, executor).good
    assert sorted(file.name for file in folder.glob("probe-*")) == ["probe-gpu1-2.txt", "probe-gpu1.txt"]


def test_a_probe_that_hangs_is_ended_with_all_it_started(make_run: MakeRun) -> None:
    spec, folder, executor = make_run("os.fork(); time.sleep(60)")
    began = time.monotonic()
    probed = probe_gpu(spec, GPU, executor, limit=0.5)
    assert probed == Probed(False, "the probe did not end in 0 s")
    assert time.monotonic() - began < 20
    assert processes_of_run(folder) == []


def test_a_check_that_the_probe_could_not_kill_is_reported(make_run: MakeRun) -> None:
    text = answer(device="hung").replace('"killable": true', '"killable": false', 2)
    spec, _, executor = make_run(f"print({text!r})")
    assert not probe_gpu(spec, GPU, executor).killable


@pytest.mark.parametrize("own", [True, False])
def test_of_a_container_its_image_does_not_decide_what_can_be_killed_nor_hide_whose_word_it_is(
    own: bool, make_run: MakeRun, matrix: Matrix, dual_host: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_probe, "is_own", lambda image: own and image == "sha256:1")
    text = answer(device="hung").replace('"killable": true', '"killable": false', 2)
    spec, folder, executor = make_run(f"print({text!r})")
    run = a_run(Path(spec.app[0]), matrix, dual_host, image="sha256:1")
    probed = probe_gpu(resolve_run(run, RunFolder(folder)), GPU, executor)
    assert probed == Probed(False, f"device hung: 'device told'{'' if own else gpu_probe.NOT_BUILT_HERE}")


def test_a_probe_that_cannot_be_started_says_nothing(make_run: MakeRun) -> None:
    spec, _, executor = make_run("")
    Path(spec.app[-3]).unlink()
    probed = probe_gpu(spec, GPU, executor)
    assert probed.good is None
    assert "could not be started" in probed.detail


class Lost:
    """A handle of a probe whose engine is gone: `poll` raises (`asked`), or never reports an end."""

    pid = None
    inspected = None
    unanswered = False
    silent_seconds = 0.0

    def __init__(self, *, asked: bool) -> None:
        self._asked = asked
        self.stopped = False

    def poll(self) -> Exit | None:
        if self._asked:
            raise JobLost("the Docker engine does not answer any more")
        return None

    def stop(self, grace: float) -> bool:
        self.stopped = True
        return True


class Losing(ProcessExecutor):
    def __init__(self, lost: Lost) -> None:
        self._lost = lost

    def start(self, job: Job) -> Any:
        self.real = super().start(job)
        return self._lost


@pytest.mark.parametrize("asked", [True, False])
def test_a_probe_that_lost_its_engine_is_ended_by_its_mark(asked: bool, make_run: MakeRun) -> None:
    spec, folder, _ = make_run("time.sleep(60)")
    lost = Lost(asked=asked)
    executor = Losing(lost)
    probed = probe_gpu(spec, GPU, executor, limit=0.5)
    assert (probed.good, probed.killable) == (None if asked else False, True)
    assert lost.stopped
    assert processes_of_run(folder) == []
    assert executor.real.poll() is not None


def test_a_probe_that_lost_its_engine_and_cannot_be_killed_is_reported(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, _, _ = make_run("")
    monkeypatch.setattr(gpu_probe, "end_processes_of_run", lambda *_: False)
    executor = Losing(Lost(asked=True))
    probed = probe_gpu(spec, GPU, executor)
    assert (probed.good, probed.killable) == (None, False)
    executor.real.stop(1)


# The interruption may come between the opening of a file and the `with` that closes it.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_interruption_ends_the_probe(make_run: MakeRun) -> None:
    # The probe waits a second before it interrupts the harness: interrupted starts are tested with the executors.
    spec, folder, executor = make_run("time.sleep(1); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        probe_gpu(spec, GPU, executor)
    assert processes_of_run(folder) == []
