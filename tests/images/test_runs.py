"""Tests of `matrix run` with containers, as users run it, with and without failures."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.paths import CHECKOUT
from harness.environments.docker.build import ensure_cell_image, ensure_stack_image
from harness.environments.docker.images import Image
from harness.environments.executors.bounded_log import MAY_LACK_SOME
from harness.environments.executors.docker import LABEL
from harness.host.engine import Engine
from harness.matrix.load import Given, load_matrix
from tests.images.conftest import wait_until
from tests.images.small_base import NAME, STAND_IN, make_small_base

# Changes to the stand-in: each step takes some time, and each finished epoch is printed.
SLOWER = (
    ("seconds if step <= per_epoch else 0", "0.15"),
    ("losses.append(", 'print(f"epoch {step // per_epoch}/{epochs}", flush=True); losses.append('),
)
# One workload takes seconds, the other does not end by itself.
MATRIX = """\
schema: 2
stacks:
  cpu: {accelerator: cpu, torch: "2.13.0"}
presets:
  plain: {description: nothing set; the control every other preset is compared with}
  two-phases:
    description: a variable of each phase
    variables: {MALLOC_ARENA_MAX: "2"}
    features: {PYTORCH_NO_HIP_MEMORY_CACHING: "1"}
    train: {PYTORCH_NO_HIP_MEMORY_CACHING: "0"}
workloads:
  tiny: {description: seconds, synthetic: {sessions: 26}, lookback: 20, epochs: 2, loader_workers: 2, time_limit: 120}
  some-seconds: {description: some seconds, synthetic: {sessions: 26}, lookback: 20, epochs: 30, time_limit: 600}
  endless: {description: never ends, synthetic: {sessions: 26}, lookback: 20, epochs: 5000, time_limit: 600}
selections:
  default: {description: all, stacks: [cpu], presets: all, workload: tiny}
  endless: {description: one, stacks: [cpu], presets: [plain], workload: endless}
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def words(tmp_path: Path, results: Path) -> list[str]:
    """Return the command line of `matrix` on the small matrix."""
    file = tmp_path / "matrix.yaml"
    file.write_text(MATRIX, encoding="utf-8")
    return [str(CHECKOUT / ".venv/bin/matrix"), "--matrix", str(file), "--results", str(results)]


@pytest.fixture
def stand_in_run(words: list[str], small_base: str, small_images: dict[str, Image], tmp_path: Path) -> list[str]:
    """Return the words of `matrix run` with small images, in which a stand-in replaces the app."""
    assert small_images
    data = tmp_path / "bars.csv"
    data.write_text(STAND_IN_BARS, encoding="utf-8")
    return [words[0], "--base", small_base, *words[1:], "run", "--data", str(data)]


def run(command: list[str], expected: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, **options)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def records(results: Path) -> list[dict[str, Any]]:
    return [json.loads(f.read_text(encoding="utf-8")) for f in sorted(results.glob("runs/*/record.json"))]


def training(results: Path) -> bool:
    return any('"step"' in f.read_text(encoding="utf-8") for f in results.glob("runs/*/work/progress-0.jsonl"))


def containers(engine: Engine, results: Path) -> list[Any]:
    found = engine.client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
    return [container for container in found if container.labels[LABEL].startswith(str(results))]


def in_training(results: Path) -> int:
    """Return how many runs have made a step."""
    files = results.glob("runs/*/work/progress-0.jsonl")
    return sum('"step"' in file.read_text(encoding="utf-8") for file in files)


# `make matrix-test` in containers, which `.ci/run` calls, has the app itself.
def test_cells_run_as_containers(stand_in_run: list[str], results: Path, engine: Engine) -> None:
    done = run(stand_in_run)
    assert "a Docker engine: the cpu stack runs, in containers" in done.stderr
    assert f"on {engine.folder}" in done.stderr
    plain, phases = records(results)
    for record in (plain, phases):
        assert (record["outcome"], record["intent"]["executor"]) == ("completed", "docker"), record["detail"]
        assert record["intent"]["image"].startswith("sha256:")
        assert record["intent"]["environment"].keys() == {"base", "lock", "app", "recipe"}
        assert record["result"]["torch"]["version"] == "2.13.0+cpu"
    assert set(phases["exit"]) == {"features", "train"}
    container = plain["intent"]["container"]
    assert (container["user"], container["group"], container["devices"]) == (os.getuid(), os.getgid(), [])
    assert container["work"] == str(results / "runs" / plain["intent"]["run_id"] / "work")
    assert containers(engine, results) == []
    before = stand_in_run[: stand_in_run.index("run")]
    verdicts = json.loads(run([*before, "status", "--json"]).stdout)["verdicts"]
    assert {(verdict["executor"], verdict["stale"]) for verdict in verdicts} == {("docker", False)}
    assert "executor docker" in (results / "report.md").read_text(encoding="utf-8")


def test_an_ordinary_user_in_the_docker_group(ordinary: Any, images: dict[str, Image]) -> None:
    results = ordinary.home / "results"
    # torch below 2.13 crashes for a uid without a name, unless USER is set.
    cell = "cpu-debian13-torch2.6.0-plain"
    # The same with less data: what is tested is seen in seconds.
    file = ordinary.home / "matrix.yaml"
    before, workload = file.read_text(encoding="utf-8").split("\n  quick:\n")
    shorter = workload.replace("{sessions: 100}\n    epochs: 2", "{sessions: 26}\n    lookback: 20\n    epochs: 1", 1)
    assert shorter != workload
    file.write_text(f"{before}\n  quick:\n{shorter}", encoding="utf-8")
    run(ordinary("run", cell, group="docker"))
    (record,) = records(results)
    assert record["outcome"] == "completed", record["detail"]
    assert record["intent"]["image"] == images[cell].id
    folder = results / "runs" / record["intent"]["run_id"]
    assert {(f.stat().st_uid, f.stat().st_gid) for f in folder.rglob("*")} == {(54321, 54321)}
    told = json.loads((folder / "container-log.json").read_text(encoding="utf-8"))
    assert told["Config"]["User"] == "54321:54321"


def test_an_engine_that_may_not_be_used_is_an_error_that_names_the_fix(ordinary: Any) -> None:
    before = list((ordinary.home / "results").glob("runs/*"))
    for words in (["run", "cpu-plain"], ["plan"], ["run-cell", "cpu-plain"], ["build", "cpu-plain"]):
        done = run(ordinary(*words, group=None), expected=2)
        assert "usermod -aG docker" in done.stderr
        assert "--executor process" in done.stderr
        assert done.stderr.count("\n") == 1
    assert list((ordinary.home / "results").glob("runs/*")) == before


def test_a_container_removed_from_outside_is_an_interrupted_run(
    stand_in_run: list[str], results: Path, engine: Engine
) -> None:
    command = [*stand_in_run, "--selection", "endless"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for lost in range(1, 5):
        # The campaign goes on even after three lost runs in a row.
        wait_until(lambda count=lost: in_training(results) == count)  # type: ignore[misc]
        (container,) = containers(engine, results)
        container.remove(force=True)
        wait_until(lambda count=lost: len(records(results)) == count)  # type: ignore[misc]
    out, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert "removed from outside" in err.splitlines()[-1]
    assert "Next: " in out
    assert {(record["outcome"], record["interrupted_by"]) for record in records(results)} == {("interrupted", "engine")}
    assert containers(engine, results) == []


def test_ctrl_c_ends_the_container(stand_in_run: list[str], results: Path, engine: Engine) -> None:
    process = subprocess.Popen([*stand_in_run, "--selection", "endless"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: training(results))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert [record["outcome"] for record in records(results)] == ["interrupted"]
    assert containers(engine, results) == []


def test_a_killed_harness_leaves_a_container_that_the_next_run_ends(
    stand_in_run: list[str], results: Path, engine: Engine
) -> None:
    process = subprocess.Popen([*stand_in_run, "--selection", "endless"], stderr=subprocess.DEVNULL)
    wait_until(lambda: training(results))
    process.kill()
    process.wait()
    assert len(containers(engine, results)) == 1
    done = run([*stand_in_run, "cpu-plain"])
    assert "recorded as interrupted" in done.stderr
    assert containers(engine, results) == []
    assert sorted(record["outcome"] for record in records(results)) == ["completed", "interrupted"]


@pytest.mark.usefixtures("images")
def test_out_of_memory_is_the_diagnosis(words: list[str], results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This memory is too small for what Python allocates. The run before it makes the data, and loads the code into the
    # page cache: code that is not there would count too, and would be read from the disk again and again instead of
    # ending the run.
    run([*words, "run-cell", "cpu-plain"])
    share = 30_000_000 / psutil.virtual_memory().total
    small = f"import sys; from harness.environments.executors import container; container.MEMORY_SHARE = {share}"
    code = f"{small}; from harness.cli.main import main; main(sys.argv[1:])"
    run([str(CHECKOUT / ".venv/bin/python"), "-c", code, *words[1:], "run-cell", "cpu-plain"], expected=1)
    (record,) = (one for one in records(results) if one["outcome"] != "completed")
    assert (record["outcome"], record["diagnosis"]) == ("failed", "out-of-memory")
    assert "memory limit" in record["detail"]


@pytest.mark.usefixtures("images")
def test_the_printed_command_does_the_same_by_hand(words: list[str], results: Path) -> None:
    printed = run([*words, "run-cell", "cpu-plain", "--print-command"]).stdout
    assert not results.joinpath("runs").exists()
    # An engine that may not raise this limit refuses the whole command.
    shell = printed if subprocess.run(["prlimit", "--memlock=unlimited", "true"], check=False).returncode == 0 else None
    done = run(["sh", "-ec", shell or printed.replace("--ulimit memlock=-1:-1", "")])
    assert "epoch 2/2" in done.stdout
    assert (results / "by-hand" / "work" / "output" / "model.pt").is_file()


def load_cell(engine: Engine, private: Engine, base: str) -> None:
    """Load the images of `cpu-plain` on a small base into a private engine."""
    matrix = load_matrix(CHECKOUT / "matrix.yaml", Given(base))
    stack = ensure_stack_image(engine, matrix.stacks["cpu"], print)
    cell = ensure_cell_image(engine, matrix.cells["cpu-plain"])
    tags = [*stack.tags, cell.id, base]
    docker = engine.builder.program
    with subprocess.Popen([docker, "save", *tags], stdout=subprocess.PIPE, env=engine.builder.variables) as saving:
        subprocess.run(
            [docker, "load", "--quiet"],
            stdin=saving.stdout,
            check=True,
            env=private.builder.variables,
            capture_output=True,
        )
    assert saving.returncode == 0


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_an_engine_takes_along_when_it_is_started_again_does_not_count_and_is_run_again(
    end: str, stand_in_run: list[str], small_base: str, results: Path, engine: Engine, private_engine: Any
) -> None:
    private = private_engine.start()
    load_cell(engine, private, small_base)
    variables = {**os.environ, "DOCKER_HOST": private_engine.address}
    command = [*stand_in_run, "--selection", "endless"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    wait_until(lambda: training(results))
    getattr(private_engine, end)()
    private_engine.start()
    wait_until(lambda: len(records(results)) == 1 and len(list(results.glob("runs/*/work/progress-0.jsonl"))) > 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "this does not count, and the command continues" in err
    found = [(record["outcome"], record["interrupted_by"]) for record in records(results)]
    assert sorted(found) == [("interrupted", "ctrl-c"), ("interrupted", "engine")]
    assert containers(private, results) == []


def test_a_container_that_outlives_its_engines_restart_is_watched_to_its_end(
    stand_in_run: list[str], results: Path, engine: Engine, bases: tuple[str, str], private_engine: Any, tmp_path: Path
) -> None:
    text = STAND_IN.read_text(encoding="utf-8")
    for old, new in SLOWER:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "slow").mkdir()
    slow = make_small_base(engine, bases[0], tmp_path / "slow", text)
    private = private_engine.start("--live-restore")
    load_cell(engine, private, slow)
    variables = {**os.environ, "DOCKER_HOST": private_engine.address}
    command = [slow if word.startswith(NAME) else word for word in stand_in_run]
    command += ["cpu-plain", "--workload", "some-seconds"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    wait_until(lambda: training(results))
    private_engine.stop()
    private_engine.start("--live-restore")
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    (record,) = records(results)
    assert record["outcome"] == "completed"
    log = results / "runs" / record["intent"]["run_id"] / "log.txt"
    said = log.read_text(encoding="utf-8")
    assert "epoch 1/30" in said
    missing = [number for number in range(1, 31) if f"epoch {number}/30" not in said]
    assert not missing or MAY_LACK_SOME in said
    assert containers(private, results) == []
