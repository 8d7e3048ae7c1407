"""Tests of what a training is begun or resumed with. Nothing is trained."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.errors import UserError
from harness.base.files.hashes import file_hash, json_hash
from harness.campaign.bench.bench import Bench, StackUnavailableError
from harness.campaign.bench.display import Display
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.fingerprint import read_host
from harness.host.simulated import SimulatedHost, dual_7900xt, without_gpu
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import ExecutorName
from harness.matrix.workload_options import options_of
from harness.registry.tags.promotions import KnownGood, TagMove, append_move
from harness.training import prepare
from harness.training.choose_cell import CellChoice, CellRequest
from harness.training.options import own_workload
from harness.training.prepare import PreparedTraining, TrainingRequest, prepare_training
from harness.training.state import StateFile, open_state_file
from tests.harness.gpu_tree import a_gpu

Evidence = Callable[..., KnownGood]
NEWER = "6.2.0"
COMMAND = "matrix train --data bars.csv"
GPU_CELL, GFX, OTHER = "rocm6.3-torch2.9.1-plain", "gfx1100", "gfx1030"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def asked(tmp_path: Path) -> TrainingRequest:
    data = tmp_path / "bars.csv"
    data.write_text(STAND_IN_BARS)
    cell = CellRequest(None, None, force=False)
    return TrainingRequest(data, tmp_path / "TRAINING", "bars", own_workload({}), cell, "process", command=COMMAND)


@pytest.fixture
def file(results: Results, host: HostFacts, asked: TrainingRequest) -> Iterator[StateFile]:
    with open_state_file(results, host, asked.output, asked.name) as opened:
        yield opened


@pytest.fixture
def begun(
    asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile, make_evidence: Evidence
) -> PreparedTraining:
    """Return a training in a known-good cell, of which one attempt was noted."""
    promoted(results, make_evidence())
    ready = prepare_training(asked, matrix, results, host, file)
    file.write(ready.state.model_copy(update={"begins": ("first",)}))
    return ready


def promoted(results: Results, evidence: KnownGood) -> KnownGood:
    append_move(results, TagMove(move="promoted", at=evidence.promoted_at, evidence=evidence))
    return evidence


def test_a_training_is_resumed_where_its_evidence_still_holds(
    begun: PreparedTraining, asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile
) -> None:
    again = prepare_training(asked, matrix, results, host, file)
    assert again.state.id == begun.state.id
    assert again.state.begins == ("first",)
    assert again.summary.startswith("cpu-plain: resuming the training begun")
    assert (again.state.command, again.state.machine) == (COMMAND, host.machine)
    assert again.state.output == str(asked.output)


def test_what_cannot_be_resumed_is_refused_before_anything_is_begun(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: object) -> None:
        assert given == (asked.output, "bars", options_of(asked.workload), results)
        raise UserError("of a training with --lookback 60")

    monkeypatch.setattr(prepare, "check_resumable", refuse)
    with pytest.raises(UserError, match="--lookback 60"):
        prepare_training(replace(asked, resume=True), matrix, results, host, file)
    assert prepare_training(asked, matrix, results, host, file).state.begins == ()


def test_an_unfinished_training_with_other_options_is_named_and_kept(
    begun: PreparedTraining, asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile
) -> None:
    longer = replace(asked, workload=own_workload({"epochs": 9}), command="another command")
    other = prepare_training(longer, matrix, results, host, file)
    assert other.state.id != begun.state.id
    assert "this is another training: an unfinished one with other options or data, begun " in other.kept
    assert other.kept.endswith(f"is kept, and its own command continues it: `{COMMAND}`")
    same = prepare_training(replace(longer, command=COMMAND), matrix, results, host, file).kept
    assert same.endswith("is kept, and this command continues it once the data are again what they were")
    file.write(other.state.model_copy(update={"begins": ("first",)}))
    assert prepare_training(asked, matrix, results, host, file).state.id == begun.state.id


def test_a_training_begun_when_options_had_their_former_names_is_resumed(
    begun: PreparedTraining, asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile
) -> None:
    options = options_of(asked.workload)
    former = {{"lookback": "warm_up"}.get(name, name): value for name, value in options.items()}
    assert former != options
    key = json_hash([former, file_hash(asked.data or Path()), asked.cell.cell, asked.cell.registry])
    file.write(begun.state.model_copy(update={"key": key, "begins": ("first",)}))
    again = prepare_training(asked, matrix, results, host, file)
    assert (again.state.id, again.state.begins) == (begun.state.id, ("first",))


def test_evidence_that_does_not_hold_any_more_is_refused_as_at_a_first_start(
    begun: PreparedTraining, asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile
) -> None:
    updated = host.model_copy(update={"kernel": NEWER})
    why = rf"known-good-cpu may not be used here: its runs had kernel {host.kernel}, and this host has {NEWER}; "
    with pytest.raises(UserError, match=f"^{why}.*or give --force$"):
        prepare_training(asked, matrix, results, updated, file)
    forced = prepare_training(replace(asked, cell=CellRequest(None, None, force=True)), matrix, results, updated, file)
    assert forced.state.id == begun.state.id
    assert f"forced: {why}" in forced.summary
    assert "resuming the training begun" in forced.summary


def test_a_training_whose_tag_was_suspended_meanwhile_is_not_resumed_with_it(
    begun: PreparedTraining,
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("prepare", "choose_cell"):
        monkeypatch.setattr(f"harness.training.{module}.suspension_by", lambda *_: lambda _: "r7 reset GPU 0")
    with pytest.raises(UserError, match="r7 reset GPU 0"):
        prepare_training(asked, matrix, results, host, file)


def test_what_was_promoted_again_is_resumed(
    begun: PreparedTraining,
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
    make_evidence: Evidence,
) -> None:
    again_promoted = promoted(results, make_evidence(kernel=NEWER, cell="cpu-no-sdma", promoted_at=2e9))
    again = prepare_training(asked, matrix, results, host.model_copy(update={"kernel": NEWER}), file)
    assert (again.state.id, again.state.begins) == (begun.state.id, ("first",))
    assert (again.state.cell, again.state.evidence, again.job.cell.id) == (
        again_promoted.cell,
        again_promoted,
        again_promoted.cell,
    )
    assert again.summary.startswith("cpu-no-sdma: known-good-cpu, 33 of 33 runs passed; resuming the training")


@pytest.mark.parametrize(("targets", "gpus"), [((OTHER, GFX), (1,)), ((GFX, OTHER), (0,)), ((OTHER, OTHER), (0, 1))])
def test_a_tag_is_trained_with_on_gpus_of_its_target_alone(
    targets: tuple[str, ...],
    gpus: tuple[int, ...],
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
    make_evidence: Evidence,
) -> None:
    unlike = tuple(a_gpu(index).model_copy(update={"gfx": gfx}) for index, gfx in enumerate(targets))
    here = host.model_copy(update={"gpus": unlike})
    promoted(results, make_evidence(tag=f"known-good-{GFX}", scope=GFX, gfx=(GFX,), gpu_count=1, cell=GPU_CELL))
    # If the host has no GPU of the tag's target, the tag can be forced.
    forced = replace(asked, cell=CellRequest(None, None, force=True))
    ready = prepare_training(forced, matrix, results, here, file)
    assert ready.job.cell.id == GPU_CELL
    assert ready.bench.gpus == gpus
    assert {run.gpus for run in ready.plan.runs} == {(gpu,) for gpu in gpus}
    named = prepare_training(replace(asked, cell=CellRequest(GPU_CELL, None, force=False)), matrix, results, here, file)
    assert named.bench.gpus == (0, 1)


def test_a_training_on_one_gpu_avoids_the_one_that_failed_what_another_passed(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    dual_host: HostFacts,
    file: StateFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepare, "bad_gpus", lambda _: (0,))
    of_cell = replace(asked, cell=CellRequest(GPU_CELL, None, force=False))
    ready = prepare_training(of_cell, matrix, results, dual_host, file)
    assert ready.job.avoided == (0,)
    assert "; not on GPU 0, which failed what another GPU passed" in ready.summary
    on_both = replace(of_cell, workload=own_workload({"strategy": "ddp"}))
    assert "not on GPU 0" not in prepare_training(on_both, matrix, results, dual_host, file).summary
    on_cpu = replace(asked, cell=CellRequest("cpu-plain", None, force=False))
    assert "not on GPU 0" not in prepare_training(on_cpu, matrix, results, dual_host, file).summary
    alone = dual_host.model_copy(update={"gpus": dual_host.gpus[:1]})
    assert prepare_training(of_cell, matrix, results, alone, file).job.avoided == ()


def test_an_unfinished_training_in_a_cell_that_is_gone_is_not_begun_again(
    begun: PreparedTraining,
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
) -> None:
    gone = begun.state.model_copy(update={"begins": ("first",), "cell": "rocm6.1-torch2.4-plain", "evidence": None})
    file.write(gone)
    with pytest.raises(UserError, match=f"no longer has its cell {gone.cell}; put that back, or `rm {file.file}` to"):
        prepare_training(asked, matrix, results, host, file)
    assert file.read(gone.key) == gone
    file.remove(gone)
    assert prepare_training(asked, matrix, results, host, file).state.id != gone.id


def test_what_has_no_checkpoint_is_not_resumed(
    asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile
) -> None:
    with pytest.raises(UserError, match=f"--resume: {asked.output} has no checkpoint of {asked.name}; give the folder"):
        prepare_training(replace(asked, resume=True), matrix, results, host, file)


def test_a_damaged_record_of_another_run_keeps_nobody_from_training(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    dual_host: HostFacts,
    file: StateFile,
    make_record: Callable[..., Record],
) -> None:
    record = make_record("damaged", "hung", "no-progress", cell=GPU_CELL, device="cuda", gpus=(0,), host=dual_host)
    results.begin(record.intent)
    results.finish(record)
    assert len(Index(results).rows()) == 1
    (results.run_folder("damaged") / "record.json").write_text("{")
    of_cell = replace(asked, cell=CellRequest(GPU_CELL, None, force=False))
    assert prepare_training(of_cell, matrix, results, dual_host, file).job.avoided == ()


def test_an_image_of_a_registry_does_not_run_as_a_process(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
    make_evidence: Evidence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = CellChoice(matrix.cells["cpu-plain"], make_evidence(), "the tag")
    monkeypatch.setattr("harness.training.prepare.choose_training_cell", lambda *_: choice)
    of_others = replace(asked, cell=CellRequest(None, "localhost:1/me", force=False))
    with pytest.raises(UserError, match=r"^known-good-cpu: images of a registry run in containers only") as caught:
        prepare_training(of_others, matrix, results, host, file)
    assert "\n" not in str(caught.value)
    assert "as a process" in prepare_training(asked, matrix, results, host, file).summary


@pytest.mark.parametrize(
    ("executor", "why"),
    [
        ("process", "as a process, like the runs that show it; --executor docker uses a container"),
        (None, "as a process, since no Docker engine answers"),
    ],
)
def test_why_it_runs_as_a_process_is_said_where_nobody_asked_for_that(
    executor: ExecutorName | None,
    why: str,
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    file: StateFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.environments.capabilities.find_engine", lambda: None)
    choice = CellChoice(matrix.cells["cpu-plain"], None, "cpu-plain: chosen", executor)
    monkeypatch.setattr(prepare, "choose_training_cell", lambda *_: choice)
    unsaid = replace(asked, executor=None)
    assert prepare_training(unsaid, matrix, results, host, file).summary.endswith(why)
    assert why not in prepare_training(asked, matrix, results, host, file).summary


def test_a_host_without_an_amd_card_trains_on_the_cpu_and_says_so(
    asked: TrainingRequest, matrix: Matrix, results: Results, host: HostFacts, file: StateFile, tmp_path: Path
) -> None:
    without_gpu(SimulatedHost(tmp_path / "host"))
    ready = prepare_training(replace(asked, root=tmp_path / "host"), matrix, results, host, file)
    assert ready.job.cell.id == "cpu-plain"
    assert ready.summary.endswith("on the CPU: this host has no GPU that torch has kernels for")


def test_a_card_that_the_driver_does_not_show_is_not_passed_over_in_silence(
    asked: TrainingRequest, matrix: Matrix, results: Results, file: StateFile, tmp_path: Path
) -> None:
    simulated = dual_7900xt(tmp_path / "host")
    simulated.remove("sys/class/kfd")
    host, asked = read_host(simulated.root), replace(asked, root=simulated.root)
    cards = "0000:03:00.0, 0000:43:00.0"
    refused = rf"^this host has an AMD card \({cards}\) .*`matrix doctor`.*--allow-cpu trains on the CPU$"
    for cell in (None, "best"):
        wanted = replace(asked, cell=CellRequest(cell, None, force=False))
        with pytest.raises(UserError, match=refused):
            prepare_training(wanted, matrix, results, host, file)
        allowed = replace(wanted, cell=replace(wanted.cell, allow_cpu=True))
        assert prepare_training(allowed, matrix, results, host, file).job.cell.id == "cpu-plain"
    named = replace(asked, cell=CellRequest("cpu-plain", None, force=False))
    assert prepare_training(named, matrix, results, host, file).job.cell.id == "cpu-plain"


def test_other_stacks_are_those_that_are_made_here_and_none_beside_a_named_cell(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    dual_host: HostFacts,
    file: StateFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = set[str]()
    monkeypatch.setattr("harness.environments.capabilities.is_made", lambda stack: stack.name in made)
    own = prepare_training(asked, matrix, results, dual_host, file).job
    assert own.others == ()
    made |= {"rocm6.2-torch2.5.1", "rocm6.3-torch2.9.1", own.cell.stack.name}
    job = prepare_training(asked, matrix, results, dual_host, file).job
    expected = {"rocm6.2-torch2.5.1-plain", "rocm6.3-torch2.9.1-plain"} - {job.cell.id}
    assert {cell.id for cell in job.others} == expected
    named = replace(asked, cell=CellRequest(GPU_CELL, None, force=False))
    assert prepare_training(named, matrix, results, dual_host, file).job.others == ()


def test_what_was_begun_on_a_gpu_goes_on_without_one_only_where_that_is_allowed(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    dual_host: HostFacts,
    file: StateFile,
) -> None:
    begun = prepare_training(asked, matrix, results, dual_host, file)
    assert begun.job.cell.stack.device == "cuda"
    file.write(begun.state.model_copy(update={"begins": ("first",)}))
    with pytest.raises(UserError, match=f"^{begun.job.cell.id} needs a GPU, .*--allow-cpu trains on the CPU$"):
        prepare_training(asked, matrix, results, host, file)
    allowed = replace(asked, cell=replace(asked.cell, allow_cpu=True))
    on_cpu = prepare_training(allowed, matrix, results, host, file)
    assert (on_cpu.job.cell.id, on_cpu.state.begins) == ("cpu-plain", ("first",))
    # The summary begins with the cell that is trained in and the reason; the cell that was asked for comes last.
    named = CellRequest(GPU_CELL, None, force=False, allow_cpu=True)
    assert prepare_training(replace(asked, cell=named), matrix, results, host, file).summary == (
        "cpu-plain, on the CPU: this host shows no GPU that torch has kernels for (`matrix doctor` says what to fix); "
        f"in place of {GPU_CELL}, as asked for"
    )
    file.write(on_cpu.state)
    back = prepare_training(asked, matrix, results, dual_host, file)
    assert back.job.cell == begun.job.cell


def test_where_the_gpus_environment_cannot_be_made_the_allowed_cpu_is_named(
    asked: TrainingRequest,
    matrix: Matrix,
    results: Results,
    dual_host: HostFacts,
    file: StateFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unanswered(_bench: Bench, cell: Cell, *_: object) -> None:
        raise StackUnavailableError(cell.stack, "the index does not answer")

    monkeypatch.setattr(Bench, "make_ready", unanswered)
    for allow, ends in ((True, "; --cell cpu-plain trains on the CPU"), (False, "")):
        wanted = replace(asked, cell=replace(asked.cell, allow_cpu=allow))
        with pytest.raises(UserError, match=f"^the index does not answer{ends}$"):
            prepare_training(wanted, matrix, results, dual_host, file).run(Display())
