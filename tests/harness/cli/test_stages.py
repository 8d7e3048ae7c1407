"""Tests of `matrix plan` in stages, and of options that choose parts of them, on a simulated host with two GPUs."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.errors import NoEngineError, UserError
from harness.base.paths import CHECKOUT
from harness.campaign.bench.plan import NOTHING_RUNS
from harness.campaign.detach import Detached
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.planning.screen_gpus import may_use
from harness.campaign.run_campaign import CampaignResult
from harness.cli import campaign_choice, in_background, run
from harness.cli.main import cli
from harness.cli.shared import as_typed
from harness.doctor.ask import ask
from harness.doctor.read import read_machine
from harness.environments.python import programs
from harness.evidence.records import Results
from harness.host import disk_use
from harness.host.fingerprint import read_host
from harness.matrix.cells import Matrix
from harness.matrix.workloads import Workload
from harness.search.conclusion import Conclusion
from tests.harness.gpu_tree import TwoGpuHost

FIRST = "rocm6.3-torch2.9.1-plain"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    TwoGpuHost(tmp_path / "root")
    return tmp_path / "root"


def plan(root: Path, *words: str) -> Result:
    return typed(root, "plan", *words)


def typed(root: Path, name: str, *words: str, matrix: Path = CHECKOUT / "matrix.yaml") -> Result:
    options = (
        "--matrix",
        str(matrix),
        "--results",
        str(root.parent / "results"),
        "--root",
        str(root),
    )
    return CliRunner().invoke(cli, [*options, name, "--executor", "process", *words])


@pytest.mark.parametrize(
    "cells",
    [(), ("rocm6.3-torch2.9.1-mine", "rocm6.4-torch2.9.1-mine", "rocm6.3-torch2.9.1-notes-dockerfile")],
    ids=["in stages", "cells"],
)
def test_a_plan_names_what_is_probably_a_mistake_in_a_preset_but_not_in_one_of_the_notes(
    cells: tuple[str, ...], root: Path, tmp_path: Path
) -> None:
    own = '  mine: {description: mine, variables: {HSA_ENABLE_SMDA: "0", GPU_MAX_HW_QUEUES: one}}'
    text = (CHECKOUT / "matrix.yaml").read_text(encoding="utf-8").replace("\npresets:\n", f"\npresets:\n{own}\n", 1)
    head, _, selections = text.partition("\nselections:\n")
    selections = selections.replace("    presets: [", "    presets: [mine, notes-dockerfile, ", 1)
    (tmp_path / "my.yaml").write_text(f"{head}\nselections:\n{selections}", encoding="utf-8")
    shown = typed(root, "plan", *cells, matrix=tmp_path / "my.yaml")
    assert ("stack by stack" in shown.stdout) == (not cells)
    named = [line for line in shown.stdout.splitlines() if line.startswith("  preset ")]
    assert [re.sub(r" \(`.*", "", line) for line in named] == [
        "  preset mine: HSA_ENABLE_SMDA: not in the catalogue of variables; did you mean HSA_ENABLE_SDMA?",
        "  preset mine: GPU_MAX_HW_QUEUES: 'one' is not a value that its reader (HIP runtime) understands",
    ]


def typed_status(root: Path) -> str:
    return CliRunner().invoke(cli, ["--results", str(root.parent / "results"), "--root", str(root), "status"]).stdout


def test_with_nothing_said_it_is_stages_within_ten_hours(root: Path) -> None:
    printed = json.loads(plan(root, "--json").stdout)
    assert printed["stages"]["budget_seconds"] == 36000
    assert (printed["stages"]["gpus"], printed["stages"]["screened"]) == (1, [0])
    assert "found 2 AMD GPUs" in printed["host"]
    assert printed["stages"]["stacks"][0]["stack"] == "rocm10.0.0-torch2.13.0"
    shorter = json.loads(plan(root, "--json", "--budget", "2h", "--use-screen-gpu").stdout)
    assert (shorter["stages"]["reachable"], shorter["stages"]["gpus"]) == ("candidate", 2)


@pytest.mark.parametrize(
    ("words", "lookback"), [([], 40), (["--stage", "smoke"], 40), ([FIRST], 40), ([FIRST], None)], ids=str
)
def test_the_lookback_that_is_given_is_that_of_every_run(root: Path, words: list[str], lookback: int | None) -> None:
    given = ["--lookback", str(lookback)] if lookback else []
    assert json.loads(plan(root, "--json", *words, *given).stdout)["workload"]["lookback"] == (lookback or 60)


def test_a_lookback_that_leaves_nothing_to_train_on_is_refused(root: Path) -> None:
    for words in ([], [FIRST]):
        error = plan(root, "--lookback", "99", *words).exception
        assert isinstance(error, UserError)
        assert "--lookback 99: workload quick has 100 synthetic sessions" in str(error)
    assert plan(root, "--lookback", "5").exit_code == 2


@pytest.mark.parametrize("words", [[FIRST], ["--selection", "default"], ["--repeats", "2"], ["--until", "known-good"]])
def test_whoever_says_which_runs_gets_those(root: Path, words: list[str]) -> None:
    assert "stages" not in json.loads(plan(root, "--json", *words).stdout)


def test_without_kfd_no_gpu_cell_can_run_and_that_is_said_before_anything_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("harness.campaign.bench.plan.why_not", lambda *_, named: None)
        patch.setattr("harness.campaign.bench.plan.why_unfit", lambda *_: "the app refuses it")
        # The message does not blame this host, because the app refuses it on every host.
        assert str(typed(root, "run", "--yes").exception) == "no cell can run: the app refuses it"
    (root / "dev/kfd").unlink()
    done = plan(root)
    assert "Plan: no cell can run on this host: there is no /dev/kfd" in " ".join(done.stdout.split())
    assert "no ROCm stack can run" in done.stdout
    ran = typed(root, "run", "--yes")
    assert isinstance(ran.exception, UserError)
    assert "there is no /dev/kfd" in str(ran.exception)
    examined = CliRunner().invoke(cli, ["--matrix", str(CHECKOUT / "matrix.yaml"), "--root", str(root), "doctor"])
    assert "can run here; `matrix plan`" not in examined.stdout
    assert " run` takes can run here: there is no /dev/kfd" in examined.stdout


def test_doctor_and_plan_give_one_figure_of_the_disk(
    root: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATRIX_EXECUTOR", "process")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=50 * 10**9))
    monkeypatch.setattr("harness.doctor.ask.measure_write_speed", lambda _: None)
    planned = json.loads(plan(root, "--json").stdout)["stages"]
    fitting = sum(one["disk_gb"] for one in [planned["verifying"], *planned["stacks"]] if one["fits"])
    left_out = ", ".join(f"{one['stack']} ({one['disk_gb']:.0f} GB)" for one in planned["stacks"] if not one["fits"])
    room = ask(read_machine(matrix, root), matrix).room
    assert room is not None
    assert (room.needed_gb, ", ".join(room.no_room)) == (fitting, left_out)
    assert fitting <= 50
    for words, follows in (("--budget", "5h"), "run --executor process --budget 5h"), (("--all", "--wide"), "clean"):
        assert re.search(rf"^Next: .*/root {follows}$", plan(root, *words).stdout, re.MULTILINE)


@pytest.mark.parametrize(("free", "waits"), [(0.3, True), (300, False)])
def test_what_follows_a_plan_waits_for_room_for_a_run(
    root: Path, monkeypatch: pytest.MonkeyPatch, free: float, waits: bool
) -> None:
    monkeypatch.setattr(disk_use, "_free", lambda _: int(free * 10**9))
    said = " ".join(plan(root).stdout.split())
    assert ("It runs this plan, once the disk of --results has room for a run." in said) == waits
    assert "It runs this plan" in said


def test_a_results_folder_without_space_is_refused_before_a_plan_is_made(root: Path) -> None:
    done = CliRunner().invoke(cli, ["--results", "/proc/x", "--root", str(root), "plan", "--executor", "process"])
    assert str(done.exception).startswith("/proc/x: no free space for the files of runs; ")


def test_of_a_plan_without_a_run_the_reason_comes_first_and_then_what_to_do(tmp_path: Path) -> None:
    for name in ("sys", "proc", "dev"):
        (tmp_path / "bare" / name).mkdir(parents=True)
    lines = plan(tmp_path / "bare", FIRST, "--workload", "production").stdout.splitlines()
    assert [re.sub(r" --(matrix|results|root) \S+", "", line) for line in lines[1:]] == [
        "Plan: no cell can run on this host: needs an AMD GPU that the wheels have kernels for; none found",
        as_typed(f"  next: {NOTHING_RUNS}"),
    ]


def test_a_stage_is_run_alone(root: Path) -> None:
    printed = json.loads(plan(root, "--json", FIRST, "--stage", "two-gpus", "--use-screen-gpu").stdout)
    assert (printed["workload"]["name"], printed["workload"]["strategy"]) == ("standard", "ddp")
    assert [run["gpus"] for run in printed["runs"]] == [[0, 1]]


@pytest.mark.parametrize("name", ["plan", "run", "train"])
@pytest.mark.parametrize(
    "command", [["python", "train.py", "--epochs", "3"], ["./train.sh"], ["/usr/bin/torchrun", "x"]]
)
def test_a_command_without_its_two_dashes_is_shown_with_them(root: Path, name: str, command: list[str]) -> None:
    done = typed(root, name, "--app", "my code", "--json", *command)
    assert isinstance(done.exception, UserError)
    assert f"{name} --executor process --app 'my code' --json -- {' '.join(command)}`" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stage", "doctor"], " doctor`"),
        (["--stage", "smok"], "did you mean smoke?"),
        (["--stage", "smoke", "--workload", "soak"], "leave --workload out"),
    ],
)
def test_a_stage_that_cannot_be_run_is_refused(root: Path, words: list[str], message: str) -> None:
    done = plan(root, *words)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)


def test_a_stage_runs_the_copy_of_a_program_of_the_users_own(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path / "programs")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    own = {"command": "python train.py", "source": str(tmp_path / "code")}
    workload = Workload.model_validate({"description": "mine", "time_limit": 60, "name": "quick", "program": own})
    changed = matrix.model_copy(update={"workloads": {**matrix.workloads, "quick": workload}})
    for lookback in (None, 5):
        program = campaign_choice._of_stages(changed, {"lookback": lookback, "data": None}).workloads["quick"].program
        assert program
        assert program.taken
        assert (Path(program.taken.folder) / "train.py").exists()


def test_without_a_gpu_each_cell_of_the_selection_is_run_once(tmp_path: Path) -> None:
    for name in ("sys", "proc", "dev"):
        (tmp_path / "bare" / name).mkdir(parents=True)
    printed = json.loads(plan(tmp_path / "bare", "--json", "--budget", "10h").stdout)
    assert "stages" not in printed
    assert printed["goal"] is None
    assert [run["cell"].removeprefix("cpu-") for run in printed["runs"]] == [
        "plain",
        "no-hipblaslt",
        "no-sdma",
        "notes-stable",
        "notes-aggressive",
    ]


@pytest.mark.slow
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
    assert lines[0] == "On a simulated host: It is so."
    assert not any(line.startswith(("Use ", "No run", "No cell")) for line in lines)
    (following,) = [line for line in lines if line.startswith("Next: ")]
    assert following.endswith("run --executor process --yes --budget 2h") == continues
    report = json.loads((root.parent / "results" / "report.json").read_bytes())
    assert report["answer"]["sentence"] == "On a simulated host: It is so."
    printed = json.loads(typed(root, "run", "--yes", "--json").stdout)
    assert (printed["conclusion"]["sentence"], printed["answer"]["sentence"]) == ("It is so.", lines[0])
    assert printed["conclusion"]["continues"] is continues
    # A person reads this later, in `matrix status`.
    assert "--json" not in printed["answer"]["next"]["command"]


@pytest.mark.slow
def test_a_campaign_that_ends_by_an_error_answers_all_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised last, and the next command is the same one; `matrix report` names that command again."""
    error = NoEngineError("the Docker engine does not answer any more; the same command continues")
    ended = CampaignResult("c", 3, None, False, False, None, error=error)
    monkeypatch.setattr(run, "run_campaign", lambda *_: ended)
    done = typed(root, "run", "--yes", "--budget", "2h")
    assert done.exception is error
    lines = done.stdout.splitlines()
    assert lines[0] == "On a simulated host: No run on this kind of host counts yet."
    (following,) = [line for line in lines if line.startswith("Next: ")]
    assert following.endswith("run --executor process --yes --budget 2h")
    report = json.loads((root.parent / "results" / "report.json").read_bytes())
    assert report["answer"]["next"]["command"] == following.removeprefix("Next: ")
    printed = json.loads(typed(root, "run", "--yes", "--json").stdout)
    assert printed["answer"]["sentence"] == lines[0]
    assert printed["error"] == {
        "code": "no-engine",
        "message": "the Docker engine does not answer any more",
        "remedy": "the same command continues",
    }


@pytest.mark.parametrize("full", ["harness.cli.run.remember_answer", "harness.report.write.write_durably"])
@pytest.mark.parametrize("error", [UserError("no space is left"), None])
def test_an_answer_that_cannot_be_written_is_printed_and_the_error_comes_last(
    root: Path, monkeypatch: pytest.MonkeyPatch, full: str, error: UserError | None
) -> None:
    unwritten = UserError("no space is left for the answer")

    def fail(*_: object) -> None:
        raise unwritten

    concluded = Conclusion("exhausted", False, "It is so.", True, {})
    ended = CampaignResult("c", 3, None, False, False, concluded, error=error)
    monkeypatch.setattr(run, "run_campaign", lambda *_: ended)
    monkeypatch.setattr(full, fail)
    done = typed(root, "run", "--yes")
    assert done.exception is (error or unwritten)
    assert done.stdout.splitlines()[0] == "On a simulated host: It is so."
    assert "report in" not in done.stdout
    printed = json.loads(typed(root, "run", "--yes", "--json").stdout)
    assert (printed["answer"]["sentence"], printed["error"]["message"]) == (
        "On a simulated host: It is so.",
        str(error or unwritten),
    )


@pytest.mark.parametrize("done", [0, 1])
def test_a_campaign_of_which_no_run_is_done_repeats_no_older_answer(
    root: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    ended = CampaignResult("c", done, 3, False, False, None)
    monkeypatch.setattr(run, "run_campaign", lambda *_: ended)
    command = typed(root, "run", FIRST, "--repeats", "3", "--yes")
    shown = command.stdout
    # Writing the report is announced, because it takes a while.
    assert "writing the report" in command.stderr.splitlines()
    assert ("No run on this kind of host counts yet." in shown) == bool(done)
    assert ("\nReport in " in shown) == (not done)
    (following,) = [line for line in shown.splitlines() if line.startswith("Next: ")]
    assert following.endswith(f"run --executor process {FIRST} --repeats 3 --yes") == (not done)


def test_where_no_base_image_can_be_had_the_next_command_runs_processes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded = Conclusion("exhausted", False, "It is so.", True, {})

    def run_campaign(prepared: PreparedCampaign, *_: object) -> CampaignResult:
        prepared.bench.lacks_base = "base image x cannot be pulled"
        return CampaignResult("c", 0, None, False, False, concluded)

    monkeypatch.setattr(run, "run_campaign", run_campaign)
    done = typed(root, "run", "--yes", "--budget", "2h")
    (following,) = [line for line in done.stdout.splitlines() if line.startswith("Next: ")]
    assert following.endswith("run --yes --budget 2h --executor process")
    assert "It runs cells as processes: base image x cannot be pulled." in done.stdout


def test_what_a_campaign_suggested_is_of_the_past_once_another_began(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds however the other campaign ended, even without an answer of its own."""

    def lacks_base(prepared: PreparedCampaign, *_: object) -> CampaignResult:
        prepared.bench.lacks_base = "base image x cannot be pulled"
        return CampaignResult("c", 0, 1, False, False, None)

    def breaks(*_: object) -> CampaignResult:
        raise NoEngineError("the Docker engine does not answer")

    for campaign, suggested in ((lacks_base, True), (breaks, False)):
        monkeypatch.setattr(run, "run_campaign", campaign)
        typed(root, "run", FIRST, "--yes")
        words = ["--results", str(root.parent / "results"), "--root", str(root), "status"]
        assert ("base image x cannot be pulled" in CliRunner().invoke(cli, words).stdout) == suggested


def test_a_budget_that_holds_no_run_is_answered_with_the_least_that_does(root: Path) -> None:
    planned = plan(root, "--budget", "1m").stdout
    assert planned.split("\n")[2].startswith("  budget: no run fits")
    done = typed(root, "run", "--yes", "--budget", "1m")
    (least,), (again,) = (
        re.findall(r"^Next: .* run .*--budget (\w+)", told, re.MULTILINE) for told in (planned, done.stdout)
    )
    assert least == again
    assert f"No run fits into the budget: the first one needs {least}" in done.stdout
    # Nothing ran, so no time is over.
    assert "time is over" not in done.stdout
    assert "budget: no run fits" not in plan(root, "--budget", least).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "not a merged CSV: its first line has 2 of at least 7 columns"),
        (
            "ts,open,high,low,close,volume,symbol\n1,2,3,4,5,6,ESZ3\n",
            "not a merged CSV: it has no column vix; `.venv/bin/matrix exec cpu-plain vpoc merge --bars DATA --vix "
            "VIX.csv --output merged.csv` adds one",
        ),
        ("time;open;high;low;close;vol\n1;2;3;4;5;6\n", "not a merged CSV: it has no column vix"),
        ("ts,open,high,low,close,volume,vix\n", "there is a header but no rows"),
        ("Time;Open;High;Low;Close;Vol;^VIX\n", "there is a header but no rows"),
        ("", "not a merged CSV: it is empty"),
        (
            "ts,open,high,low,close,volume,vix\n2024-01-02T14:30:00Z,1,1,1,1,1,1\n",
            "has bars of 1 weekday, so no more sessions, and 63 are needed (60 for lookback, 3 to use); give more data",
        ),
        ("\x7fELF\0\1,,,,,,,,\n1\n", "not a merged CSV: it is not text"),
        ("\x1f\x8b\x08\0\0", "is compressed by gzip; `zcat DATA > DATA.csv` unpacks it"),
    ],
)
def test_data_that_no_cell_can_train_on_are_refused_before_anything_is_made(
    root: Path, text: str, message: str
) -> None:
    data = root.parent / "bars.csv"
    data.write_bytes(text.encode("latin-1"))
    for words in (["plan"], ["run", "--yes"], ["train", "--output", str(root.parent / "out")]):
        done = typed(root, *words, "--data", str(data))
        assert isinstance(done.exception, UserError), done.output
        assert f"--data {data}: {message.replace('DATA', str(data))}" in str(done.exception)
    data.write_text(STAND_IN_BARS)
    assert plan(root, "--data", str(data)).exit_code == 0


@pytest.mark.parametrize("head", ["timestamp;o;h;l;c;vol;vix\n1;1;1;1;1;1;15\n", "PAR1"])
def test_data_in_other_forms_are_the_apps_to_judge(root: Path, head: str) -> None:
    data = root.parent / "bars.csv"
    data.write_text(head)
    assert plan(root, "--data", str(data)).exit_code == 0


def test_before_a_search_it_is_said_what_the_budget_can_reach(root: Path) -> None:
    done = plan(root, FIRST, "--until", "known-good", "--budget", "8h")
    printed = " ".join(done.stdout.split())
    assert " runs (assumed: 3 min each), about 11.3 h; 8.0 h can reach `good` at best" in printed
    assert "Plan: 1 cell, until one is known-good, within 8.0 h: runs of" in printed
    assert printed.index("goal:") < printed.index("cells:")


def test_a_goal_with_a_stage_keeps_the_stages_workload(root: Path) -> None:
    printed = json.loads(plan(root, "--json", FIRST, "--stage", "smoke", "--until", "known-good").stdout)
    assert printed["workload"]["name"] == "quick"


def test_what_runs_on_in_the_background_is_reported_as_json_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []

    def detach(command: tuple[str, ...], _: Path) -> Detached:
        started.append(command)
        return Detached("process 1", "kill -INT 1")

    monkeypatch.setattr(in_background, "detach", detach)
    printed = json.loads(typed(root, "run", "--detach", "--budget", "2h", "--json").stdout)
    assert printed["stop"] == "kill -INT 1"
    (command,) = started
    assert command[-6:] == ("--executor", "process", "--budget", "2h", "--json", "--yes")


@pytest.mark.slow
def test_without_a_terminal_no_run_uses_a_gpu_with_a_screen_and_that_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    concluded = Conclusion("reached", True, "It is so.", False, {})
    planned = []
    for words in ([], ["--use-screen-gpu"], [], ["--no-use-screen-gpu"]):
        printed = json.loads(plan(root, "--json", *words).stdout)["stages"]
        planned.append((printed["gpus"], printed["screened"]))
    # A plan says what a run with the same options would do, and remembers none of them.
    assert planned == [(1, [0]), (2, []), (1, [0]), (1, [0])]

    def run_campaign(prepared: PreparedCampaign, *_: object) -> CampaignResult:
        used.append(prepared.bench.gpus)
        return CampaignResult("c", 3, None, False, True, concluded)

    monkeypatch.setattr(run, "run_campaign", run_campaign)
    done = typed(root, "run", "--yes")
    assert "a screen is connected to GPU 0: no run uses it, so what trains on both GPUs stays unknown" in " ".join(
        done.stderr.split()
    )
    typed(root, "run", "--yes", "--use-screen-gpu")
    typed(root, "run", "--yes")
    typed(root, "run", "--yes", "--no-use-screen-gpu")
    assert used == [(1,), (1, 0), (1, 0), (1,)]
    printed = json.loads(plan(root, "--json").stdout)
    assert (printed["stages"]["gpus"], printed["stages"]["screened"]) == (1, [0])


@pytest.mark.slow
def test_where_no_stack_could_be_made_the_next_command_waits_for_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded = Conclusion("exhausted", False, "No stack had its turn.", True, {})
    for runs, waits in ((0, True), (2, False)):
        ended = CampaignResult("c", runs, None, False, False, concluded)
        monkeypatch.setattr(run, "run_campaign", lambda *_, ended=ended: ended)
        printed = typed(root, "run", "--yes").stdout
        assert ("continues this campaign, once a stack can be made" in " ".join(printed.split())) == waits
        # `matrix status` repeats the advice, but prints nothing above it to which it could refer.
        assert "above" not in typed_status(root)


@pytest.mark.slow
def test_after_the_budget_the_next_command_is_said_to_have_it_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded = Conclusion("out-of-time", False, "The time is over.", True, {})
    ended = CampaignResult("c", 2, None, False, False, concluded)
    monkeypatch.setattr(run, "run_campaign", lambda *_: ended)
    printed = typed(root, "run", "--yes", "--budget", "2h").stdout
    assert "It continues from these records, with the whole budget again." in " ".join(printed.split())


@pytest.mark.parametrize("answer", [True, False])
def test_it_is_asked_once(root: Path, *, answer: bool) -> None:
    questions: list[str] = []

    def ask(text: str) -> bool:
        questions.append(text)
        return answer

    host, results = read_host(root), Results(root.parent / "results")
    assert [may_use(host, results, None, ask) for _ in range(2)] == [answer, answer]
    assert len(questions) == 1
    assert "a screen is connected to GPU 0 (DP-1)" in questions[0]
