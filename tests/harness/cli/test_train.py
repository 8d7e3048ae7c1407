"""Tests of what `matrix train` refuses before anything is begun, and of what it prints."""

import fcntl
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign.detach import Detached
from harness.cli import in_background
from harness.cli.by_make import BY_MAKE
from harness.cli.main import cli
from harness.cli.shared import INTERRUPTED
from harness.host.simulated import dual_7900xt
from harness.training.prepare import PreparedTraining
from harness.training.train import TrainingResult


def typed(place: Path, *words: str) -> Result:
    data = place / "merged.csv"
    data.write_text(STAND_IN_BARS, encoding="utf-8")
    places = ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(place / "results")]
    of_training = ["train", "--data", str(data), "--output", str(place / "out"), "--executor", "process"]
    return CliRunner().invoke(cli, [*places, *of_training, *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--inject-fault", "segw@3"], "unknown kind of fault 'segw'; did you mean segv?"),
        (["--inject-fault", "segv"], "say in which step, and perhaps on which rank: segv@20 or segv@20/1"),
        (["--inject-fault", "segv@0"], "say in which step"),
        (["--inject-fault", "segv@3/x"], "say in which step"),
        # This fault comes from outside, and nobody injects faults into a training from there.
        (["--inject-fault", "container-removed@3"], "unknown kind of fault 'container-removed'"),
        (["--lookback", "5"], "--lookback 5: should be 20 or more; give another --lookback"),
        (["--epochs", "zero"], "--epochs zero: should be a whole number; give another --epochs"),
        (["--learning-rate", "7"], "--learning-rate 7: should be 1.0 or less"),
        (["--hidden-layers", "32,0"], "--hidden-layers"),
        (["--strategy", "ddp", "--backend", "nccl", "--cell", "cpu-plain"], "backend nccl works on GPUs only"),
        (["--sdpa", "efficient", "--cell", "cpu-plain"], "sdpa efficient has no kernel for a CPU"),
        (["--cell", "known-good"], "leave --cell out: the known-good one is used if there is a tag for this host"),
        (["--workload", "standard"], "--workload standard is our app's: leave it out"),
        (["--workload", "standart"], "did you mean standard?"),
        (["--app", ".", "--epochs", "3", "--", "x"], "--epochs is for our app, which your program replaces"),
        (["--app", ".", "--resume", "--", "x"], "leave it out; --resume-with gives its own words"),
        (["--app", "."], "give it last: -- python train.py"),
        (["--app", "app/vpoc", "--", "cli.py", "-x"], "--app: cli.py is no command; type `-- python cli.py -x`"),
        (["--", "python", "a.py"], "the command `python a.py` needs --app DIR, the folder of your program"),
        (["--app", "no-such", "--", "x"], "no-such: no such folder"),
        (["--app", ".", "--resume-with", "--from {checkpoint}", "--", "x"], "is what `checkpoint:` matches; give that"),
        (
            ["--app", ".", "--resume-with", "--from {last}", "--", "x"],
            "{last} in --resume-with, or `resume:`, is not known",
        ),
        (["--app", ".", "--", "x", "--from", "{checkpoint}"], "{checkpoint} goes into --resume-with"),
        (["--app", "app/vpoc", "--", "python", "-u", "cil.py"], "vpoc/cil.py: no such file"),
        (["--app", "app/vpoc", "--", "python3", "./cil.py"], "did you mean cli.py?"),
        (["--app", ".", "--progress", r"step (\d+)", "--", "x"], r"'step (\d+)' needs a group (?P<step>...)"),
        (["--app", ".", "--stall-limit", "1s", "--", "x"], "--stall-limit: should be 2 or more, not 1"),
        (["--stall-limit", "90s"], "--stall-limit goes with --app DIR, the folder of your program"),
        (["--checkpoint", "x"], "--checkpoint goes with --app DIR, the folder of your program"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_is_begun(words: list[str], message: str, tmp_path: Path) -> None:
    done = typed(tmp_path, *words)
    assert isinstance(done.exception, UserError), done.output
    assert message in str(done.exception)
    assert len(str(done.exception).splitlines()) == 1
    assert not (tmp_path / "results" / "runs").exists()


def test_an_interrupted_training_names_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(prepared: PreparedTraining, _display: object) -> None:
        prepared.file.write(prepared.state.model_copy(update={"begins": ("first",)}))
        prepared.job.output.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(PreparedTraining, "run", interrupted)
    done = typed(tmp_path, "--cell", "cpu-plain", "--yes")
    assert done.exit_code == INTERRUPTED
    out = tmp_path / "out"
    command = f"train --data {tmp_path / 'merged.csv'} --output {out} --executor process --cell cpu-plain --yes`"
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Interrupted"))
    assert line.startswith("Interrupted; this continues where it stopped: `")
    assert line.endswith(command)
    # `matrix status` names the command, too, so that nobody has to remember the output folder.
    status = CliRunner().invoke(cli, ["--results", str(tmp_path / "results"), "status"])
    (line,) = (line for line in status.stderr.splitlines() if "is not finished" in line)
    assert line.startswith(f"matrix: {out}: ")
    assert line.endswith(command)
    listed = CliRunner().invoke(cli, ["--results", str(tmp_path / "results"), "status", "--json"])
    assert [one["output"] for one in json.loads(listed.stdout)["unfinished_trainings"]] == [str(out)]


def test_where_a_model_that_is_replaced_is_kept_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreparedTraining, "run", lambda *_: TrainingResult([]))
    monkeypatch.setenv(BY_MAKE, "1")
    (tmp_path / "out").mkdir()
    for name in ("merged.pt", "merged.previous.pt"):
        (tmp_path / "out" / name).write_text(name, encoding="utf-8")
    printed = " ".join(typed(tmp_path, "--yes").stderr.split())
    assert "no cell is shown to train here yet, and `.venv/bin/matrix" in printed
    assert "Length: 3 epochs at most; how long one takes is not known yet: the first one shows it" in printed
    assert "merged.pt exists: it is trained again, and kept as merged.previous-2.pt once another model" in printed
    assert "on the same bars, --resume with more --epochs continues it" in printed
    assert printed.count("--resume goes into ARGS=") == 1
    page = tmp_path / "results" / "report.html"
    assert page.is_file()
    # The training keeps its result, even if its report cannot be written.
    page.unlink()
    page.mkdir()
    again = typed(tmp_path, "--cell", "cpu-plain", "--yes", "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["model"] is None
    assert "the report could not be updated after this training" in again.stderr


def test_what_a_stack_takes_and_that_its_driver_is_not_for_it_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreparedTraining, "run", lambda *_: TrainingResult([]))
    # The environment in which runs are verified has to be made, too.
    monkeypatch.setattr("harness.environments.environment.ENVIRONMENTS", tmp_path / "environments")
    host = dual_7900xt(tmp_path / "host")
    host.write("sys/module/amdgpu/version", "6.16.13")
    monkeypatch.setenv("MATRIX_ROOT", str(host.root))
    printed = " ".join(typed(tmp_path, "--cell", "rocm6.2-torch2.5.1-plain", "--yes").stderr.split())
    assert " GB at most on " in printed
    assert "to download: 6.3 GB Length" in printed
    assert "is supported with ROCm 6.3 to 7.2; rocm6.2-torch2.5.1 is run all the same" in printed


def test_a_training_is_left_to_a_process_that_outlives_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    def detach(command: tuple[str, ...], log: Path) -> Detached:
        started.append(command)
        (lock,) = (tmp_path / "results" / "trainings").glob("*.lock")
        with lock.open("w") as stream:
            # The detached process takes this lock, so the command must have released it.
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert log.parent == tmp_path / "results" / "campaigns"
        return Detached("process 1", "kill -INT 1")

    monkeypatch.setattr(in_background, "detach", detach)
    printed = json.loads(typed(tmp_path, "--cell", "cpu-plain", "--detach", "--yes", "--json").stdout)
    assert printed["stop"] == "kill -INT 1"
    assert printed["watch"].endswith("watch")
    (command,) = started
    assert "--detach" not in command
    assert command[-4:] == ("--cell", "cpu-plain", "--json", "--yes")
