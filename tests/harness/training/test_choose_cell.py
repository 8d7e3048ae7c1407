"""Tests of which cell a training is made in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.campaign.answered import LastAnswer, remember_answer
from harness.campaign.bench.plan import first_plain_cell, plain_cpu_cell
from harness.environments.capabilities import Capabilities
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.evidence.verdicts.recommend import NamedCell
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.programs import Program
from harness.registry.tags.known_good import KnownGood, NotForThisHostError, NothingPromotedError
from harness.report.write import built_report
from harness.training import choose_cell
from harness.training.choose_cell import CellChoice, CellRequest, choose_training_cell

CPU_ONLY = Capabilities((), "docker", frozenset(), None)
NO_REQUEST = CellRequest(None, None, force=False)


@pytest.fixture
def chosen(
    matrix: Matrix, host: HostFacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[CellRequest, KnownGood | UserError], CellChoice]:
    """Return a function that chooses a cell, given what the tags resolve to."""

    def choose_with(request: CellRequest, tags: KnownGood | UserError) -> CellChoice:
        def resolve(*_: object) -> KnownGood:
            if isinstance(tags, UserError):
                raise tags
            return tags

        monkeypatch.setattr(choose_cell, "resolve_tag", resolve)
        monkeypatch.setattr(choose_cell, "suspension_by", lambda *_: None)
        return choose_training_cell(request, matrix, Results(tmp_path), host, CPU_ONLY, 1e9)

    return choose_with


def test_the_known_good_cell_is_taken_with_its_evidence(
    chosen: Callable[..., CellChoice], make_evidence: Callable[..., KnownGood]
) -> None:
    evidence = make_evidence()
    choice = chosen(NO_REQUEST, evidence)
    assert (choice.cell.id, choice.evidence) == ("cpu-plain", evidence)
    assert choice.summary == "cpu-plain: known-good-cpu, 33 of 33 runs passed"


def test_a_newcomer_gets_the_plain_cell_and_a_line(chosen: Callable[..., CellChoice]) -> None:
    choice = chosen(NO_REQUEST, NothingPromotedError("none"))
    assert (choice.cell.id, choice.evidence) == ("cpu-plain", None)
    assert "no cell is shown to train here yet, and `matrix run` looks for one" in choice.summary


def test_evidence_of_devices_used_otherwise_is_reported(
    chosen: Callable[..., CellChoice], make_evidence: Callable[..., KnownGood]
) -> None:
    request = replace(NO_REQUEST, strategy="ddp")
    assert "no cell is known to be good with strategy ddp" in chosen(request, make_evidence()).summary
    assert "no cell is known" not in chosen(request, make_evidence(scope="gfx1100-ddp-2")).summary
    assert "known to be good with strategy single" in chosen(NO_REQUEST, make_evidence(scope="gfx1100-ddp-2")).summary


def test_a_registry_without_a_tag_is_no_newcomer(chosen: Callable[..., CellChoice]) -> None:
    with pytest.raises(UserError, match=r"^none stands; is that its name\? `--cell best`"):
        chosen(replace(NO_REQUEST, registry="localhost:1/me"), NothingPromotedError("none stands"))


def test_a_tag_of_another_host_is_refused_and_can_be_forced(
    chosen: Callable[..., CellChoice], make_evidence: Callable[..., KnownGood]
) -> None:
    refusal = NotForThisHostError("its evidence expired; name a cell", make_evidence())
    with pytest.raises(UserError, match=r"^its evidence expired; name a cell, or give --force$"):
        chosen(NO_REQUEST, refusal)
    choice = chosen(replace(NO_REQUEST, force=True), refusal)
    assert choice.evidence == refusal.evidence
    assert "forced: its evidence expired" in choice.summary


def test_a_registry_that_does_not_answer_is_no_newcomer(chosen: Callable[..., CellChoice]) -> None:
    with pytest.raises(UserError, match="does not answer"):
        chosen(NO_REQUEST, UserError("the registry does not answer"))


def test_who_names_a_cell_gets_it_whatever_the_tags_say(
    chosen: Callable[..., CellChoice], make_evidence: Callable[..., KnownGood]
) -> None:
    assert chosen(replace(NO_REQUEST, cell="cpu-no-sdma"), make_evidence()).cell.id == "cpu-no-sdma"
    choice = chosen(replace(NO_REQUEST, cell="best"), make_evidence(cell="cpu-no-sdma"))
    assert (choice.cell.id, choice.evidence) == ("cpu-plain", None)
    assert choice.summary == "cpu-plain: the first plain cell that can run here"


def test_a_cell_before_those_of_the_plan_is_not_said_to_be_its_first(
    matrix: Matrix, dual_host: HostFacts, tmp_path: Path
) -> None:
    able = replace(GPUS, driver="6.16.13")
    choice = choose_training_cell(replace(NO_REQUEST, cell="best"), matrix, Results(tmp_path), dual_host, able, 1e9)
    of = "the first plain cell that can run here, if possible of a ROCm that its driver is for"
    assert choice.summary == f"rocm6.3-torch2.9.1-plain: {of}"


GPUS = replace(CPU_ONLY, gpus=(0, 1))
OTHER, BETTER = "rocm7.2-torch2.14.0-no-sdma", "rocm6.3-torch2.9.1-no-sdma"


@pytest.fixture
def ran(dual_host: HostFacts, make_record: Callable[..., Record], tmp_path: Path) -> Callable[..., Results]:
    """Return a function that keeps `runs` runs of a GPU cell, made as processes on this host."""

    def keep(
        cell: str, runs: int, outcome: str = "completed", program: Program | None = None, host: HostFacts = dual_host
    ) -> Results:
        results, stack = Results(tmp_path), cell.removesuffix("-no-sdma")
        for number in range(runs):
            of = {"cell": cell, "stack": stack, "preset": "no-sdma", "device": "cuda", "gpus": (0,), "host": host}
            record = make_record(f"{stack}-{number}", outcome, program=program, **of)
            folder = results.begin(record.intent)
            write_durably(folder / "record.json", record.model_dump_json(by_alias=True).encode())
        return results

    return keep


@pytest.mark.slow
def test_what_too_few_runs_show_is_not_called_the_answer(
    ran: Callable[..., Results], matrix: Matrix, dual_host: HostFacts
) -> None:
    choice = choose_training_cell(NO_REQUEST, matrix, ran(OTHER, 1), dual_host, GPUS, 1e9)
    assert choice.summary.startswith(f"{OTHER}: the most promising of the runs here (seen: ")


@pytest.mark.slow
def test_without_a_tag_it_is_what_the_answer_names(
    ran: Callable[..., Results], matrix: Matrix, dual_host: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.write.host_of", lambda *_: dual_host)
    results = ran(OTHER, 5)
    choice = choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9)
    assert (choice.cell.id, choice.executor) == (OTHER, "process")
    assert choice.summary.startswith(f"{OTHER}: the answer of the runs here (")
    assert choice.summary.endswith("5 of 5 starts, 5.0 h of training, no failure, 1 boot), not known-good yet")
    assert f"`{OTHER}`" in built_report(results, matrix).report.answer.sentence
    # Of equal cells, the one with a ROCm that the driver supports is chosen.
    driven, served = dual_host.model_copy(update={"driver": "6.19.14"}), "rocm7.0-torch2.10.0-no-sdma"
    monkeypatch.setattr("harness.report.write.host_of", lambda *_: driven)
    for cell in ("rocm6.3-torch2.8.0-no-sdma", served):
        results = ran(cell, 5, host=driven)
    assert choose_training_cell(NO_REQUEST, matrix, results, driven, GPUS, 1e9).cell.id == served
    assert f"`{served}`" in built_report(results, matrix).report.answer.sentence
    monkeypatch.setattr("harness.report.write.host_of", lambda *_: dual_host)
    # The conclusion of the campaign is the answer, though the records alone would name another cell.
    ran(BETTER, 7)
    assert choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9).cell.id == BETTER
    remember_answer(results, dual_host.machine, LastAnswer(NamedCell(OTHER, "single")))
    choice = choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9)
    assert choice.summary.startswith(f"{OTHER}: the answer of the last campaign (")
    assert f"`{OTHER}`" in built_report(results, matrix).report.answer.sentence


@pytest.mark.slow
def test_after_a_change_of_this_host_or_the_app_it_is_the_answer_of_before_until_a_run_counts(
    ran: Callable[..., Results], matrix: Matrix, dual_host: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, upgraded = ran(OTHER, 5), dual_host.model_copy(update={"kernel": "6.18.2", "kind": "another"})
    choice = choose_training_cell(NO_REQUEST, matrix, results, upgraded, GPUS, 1e9)
    assert (choice.cell.id, choice.executor) == (OTHER, "process")
    assert choice.summary.startswith(f"{OTHER}: the most promising before the app or this host changed (")
    other_machine = upgraded.model_copy(update={"machine": "another"})
    plain = choose_training_cell(NO_REQUEST, matrix, results, other_machine, GPUS, 1e9)
    assert "first plain cell" in plain.summary
    with monkeypatch.context() as patched:
        patched.setattr(
            "harness.evidence.verdicts.of_results.current_hashes", lambda *_: {(OTHER, "process"): "another"}
        )
        assert choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9).cell.id == OTHER
    ran(BETTER, 2, "failed", host=upgraded)
    failing = choose_training_cell(NO_REQUEST, matrix, results, upgraded, GPUS, 1e9)
    assert "first plain cell" in failing.summary


def test_an_answer_that_names_no_cell_to_train_in_leaves_the_plain_one(
    ran: Callable[..., Results], matrix: Matrix, dual_host: HostFacts
) -> None:
    results = ran(OTHER, 3, "failed")
    choice = choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9)
    assert choice.cell.preset.name == "plain"
    assert "no cell is shown to train here yet" in choice.summary


def test_an_answer_on_the_cpu_is_none_on_a_host_with_gpus(
    matrix: Matrix,
    dual_host: HostFacts,
    make_record: Callable[..., Record],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody named the cpu cell before; a training that follows is not to take days for that."""
    results = Results(tmp_path)
    monkeypatch.setattr("harness.evidence.verdicts.of_results.current_hashes", lambda *_: {})
    for number in range(5):
        record = make_record(f"r{number}", cell="cpu-plain", stack="cpu", preset="plain", device="cpu", host=dual_host)
        folder = results.begin(record.intent)
        write_durably(folder / "record.json", record.model_dump_json(by_alias=True).encode())
    remember_answer(results, dual_host.machine, LastAnswer(NamedCell("cpu-plain", "single")))
    choice = choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9)
    assert choice.cell.stack.accelerator == "rocm"
    without = dual_host.model_copy(update={"gpus": ()})
    choice = choose_training_cell(NO_REQUEST, matrix, results, without, CPU_ONLY, 1e9)
    assert choice.summary.startswith("cpu-plain: the answer of the last campaign (")


def test_runs_of_a_program_whose_numbers_nobody_checked_recommend_no_cell(
    ran: Callable[..., Results], matrix: Matrix, dual_host: HostFacts
) -> None:
    results = ran(OTHER, 5, program=Program.model_validate({"command": "x", "source": "."}))
    remember_answer(results, dual_host.machine, LastAnswer(NamedCell(OTHER, "single")))
    choice = choose_training_cell(NO_REQUEST, matrix, results, dual_host, GPUS, 1e9)
    assert choice.cell.id != OTHER
    assert "no cell is shown to train here yet" in choice.summary


def test_an_answer_about_devices_used_otherwise_is_reported(
    ran: Callable[..., Results], matrix: Matrix, dual_host: HostFacts
) -> None:
    request = replace(NO_REQUEST, strategy="ddp")
    choice = choose_training_cell(request, matrix, ran(OTHER, 5), dual_host, GPUS, 1e9)
    said = "those runs used one GPU (gfx1100), this training is of strategy ddp (--strategy single, with make"
    assert said in choice.summary


def test_a_tag_of_a_cell_that_the_matrix_lacks_is_reported(
    chosen: Callable[..., CellChoice], make_evidence: Callable[..., KnownGood]
) -> None:
    told = r"known-good-cpu is gone-plain, which the matrix file does not have; give the file .* \(--matrix FILE\)"
    with pytest.raises(UserError, match=told):
        chosen(NO_REQUEST, make_evidence(cell="gone-plain"))


def test_the_plain_cell_of_a_host_is_the_first_that_can_run(matrix: Matrix) -> None:
    assert first_plain_cell(matrix, CPU_ONLY).id == "cpu-plain"
    gpus = first_plain_cell(matrix, replace(CPU_ONLY, gpus=(0, 1)))
    assert gpus.id == "rocm10.0.0-torch2.13.0-plain"
    assert first_plain_cell(matrix, replace(CPU_ONLY, gpus=(0, 1), driver="6.16.13")).id == "rocm6.3-torch2.9.1-plain"
    only_rocm = matrix.selections["default"].model_copy(update={"stacks": ("rocm6.3-torch2.9.1",)})
    without_cpu = matrix.model_copy(update={"selections": {"default": only_rocm}})
    with pytest.raises(UserError, match=r"rocm6\.3-torch2\.9\.1-plain cannot run here: needs an AMD GPU"):
        first_plain_cell(without_cpu, CPU_ONLY)


def test_what_remains_without_gpus_is_a_cell_that_sets_nothing(matrix: Matrix) -> None:
    cell = plain_cpu_cell(matrix)
    assert cell is not None
    assert cell.id == "cpu-plain"
