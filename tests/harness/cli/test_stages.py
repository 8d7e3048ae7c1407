"""`matrix plan` in stages, and the ways to say parts of them, on a simulated host with two GPUs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign.detach import Detached
from harness.campaign.run_campaign import CampaignResult
from harness.cli import run
from harness.cli.main import cli
from harness.search.conclusion import Conclusion
from tests.harness.gpu_tree import Tree

FIRST = "rocm6.3-torch2.9.1-plain"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Tree(tmp_path / "root")
    return tmp_path / "root"


def plan(root: Path, *words: str) -> Result:
    return typed(root, "plan", *words)


def typed(root: Path, name: str, *words: str) -> Result:
    options = (
        "--matrix",
        str(CHECKOUT / "matrix.yaml"),
        "--results",
        str(root.parent / "results"),
        "--root",
        str(root),
    )
    return CliRunner().invoke(cli, [*options, name, "--executor", "process", *words])


def test_with_nothing_said_it_is_stages_within_ten_hours(root: Path) -> None:
    told = json.loads(plan(root, "--json").stdout)
    assert told["stages"]["budget_seconds"] == 36000
    assert told["stages"]["gpus"] == 2
    assert told["stages"]["stacks"][0]["stack"] == "rocm6.3-torch2.9.1"
    shorter = json.loads(plan(root, "--json", "--budget", "2h").stdout)
    assert shorter["stages"]["reachable"] == "candidate"


@pytest.mark.parametrize("words", [[FIRST], ["--selection", "default"], ["--repeats", "2"], ["--until", "known-good"]])
def test_whoever_says_which_runs_gets_those(root: Path, words: list[str]) -> None:
    assert "stages" not in json.loads(plan(root, "--json", *words).stdout)


def test_a_stage_is_run_alone(root: Path) -> None:
    told = json.loads(plan(root, "--json", FIRST, "--stage", "two-gpus").stdout)
    assert (told["workload"]["name"], told["workload"]["strategy"]) == ("standard", "ddp")
    assert [run["gpus"] for run in told["runs"]] == [[0, 1]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stage", "doctor"], "run `matrix doctor`"),
        (["--stage", "smok"], "did you mean smoke?"),
        (["--stage", "smoke", "--workload", "soak"], "leave --workload out"),
    ],
)
def test_a_stage_that_cannot_be_run_is_refused(root: Path, words: list[str], said: str) -> None:
    done = plan(root, *words)
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)


def test_without_a_gpu_each_cell_of_the_selection_is_run_once(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    told = json.loads(plan(tmp_path / "bare", "--json", "--budget", "10h").stdout)
    assert "stages" not in told
    assert told["goal"] is None
    assert [run["cell"].removeprefix("cpu-") for run in told["runs"]] == [
        "plain",
        "no-hipblaslt",
        "no-sdma",
        "notes-stable",
        "notes-aggressive",
    ]


@pytest.mark.parametrize("continues", [False, True])
def test_a_campaign_ends_with_one_sentence_and_one_command(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, continues: bool
) -> None:
    why = "out-of-time" if continues else "reached"
    concluded = Conclusion(why, not continues, "It is so.", continues, {})  # type: ignore[arg-type]
    ended = CampaignResult("c", 3, None, False, not continues, concluded)
    monkeypatch.setattr(run, "run_campaign", lambda *_: ended)
    done = typed(root, "run", "--yes", "--budget", "2h")
    assert done.exit_code == int(continues)
    lines = done.stdout.splitlines()
    assert lines[0] == "It is so."
    assert not any(line.startswith(("Use ", "No run", "No cell")) for line in lines)
    (following,) = [line for line in lines if line.startswith("Next: ")]
    assert following.endswith("run --executor process --yes --budget 2h") == continues
    report = json.loads((root.parent / "results" / "report.json").read_bytes())
    assert report["answer"]["sentence"] == "It is so."
    told = json.loads(typed(root, "run", "--yes", "--json").stdout)
    assert told["conclusion"]["sentence"] == told["answer"]["sentence"] == "It is so."
    assert told["conclusion"]["continues"] is continues


def test_a_goal_with_a_stage_keeps_the_stages_workload(root: Path) -> None:
    told = json.loads(plan(root, "--json", FIRST, "--stage", "smoke", "--until", "known-good").stdout)
    assert told["workload"]["name"] == "quick"


def test_what_runs_on_in_the_background_is_told_as_json_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []

    def detach(command: tuple[str, ...], _: Path) -> Detached:
        started.append(command)
        return Detached("process 1", "kill -INT 1")

    monkeypatch.setattr(run, "detach", detach)
    told = json.loads(typed(root, "run", "--detach", "--budget", "2h", "--json").stdout)
    assert told["stop"] == "kill -INT 1"
    (command,) = started
    assert command[-6:] == ("--executor", "process", "--budget", "2h", "--json", "--yes")
