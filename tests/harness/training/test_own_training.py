"""What a training is begun with, or gone on with. Nothing is trained."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.registry.tags.promotions import KnownGood, TagMove, append_move
from harness.training.choose_cell import Wish
from harness.training.options import own_workload
from harness.training.own_training import Asked, Ready, prepare
from harness.training.trainings import Notebook, open_notebook
from tests.harness.gpu_tree import a_gpu

Evidence = Callable[..., KnownGood]
NEWER = "6.2.0"
GPU_CELL, GFX, OTHER = "rocm6.3-torch2.9.1-plain", "gfx1100", "gfx1030"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    data = tmp_path / "bars.csv"
    data.write_text("made up")
    wish = Wish(None, None, force=False)
    return Asked(data, tmp_path / "TRAINING", "bars", own_workload({}), wish, "process")


@pytest.fixture
def notebook(results: Results, host: HostFacts, asked: Asked) -> Iterator[Notebook]:
    with open_notebook(results, host, asked.output, asked.name) as opened:
        yield opened


@pytest.fixture
def begun(
    asked: Asked, matrix: Matrix, results: Results, host: HostFacts, notebook: Notebook, make_evidence: Evidence
) -> Ready:
    """A training in a known-good cell of which one attempt was noted."""
    promoted(results, make_evidence())
    ready = prepare(asked, matrix, results, host, notebook)
    notebook.write(ready.training.model_copy(update={"begins": ("first",)}))
    return ready


def promoted(results: Results, evidence: KnownGood) -> KnownGood:
    append_move(results, TagMove(move="promoted", at=evidence.promoted_at, evidence=evidence))
    return evidence


def test_a_training_is_gone_on_with_where_its_evidence_still_holds(
    begun: Ready, asked: Asked, matrix: Matrix, results: Results, host: HostFacts, notebook: Notebook
) -> None:
    again = prepare(asked, matrix, results, host, notebook)
    assert again.training.id == begun.training.id
    assert again.training.begins == ("first",)
    assert again.told.startswith("cpu-plain: going on with the training begun")


def test_evidence_that_does_not_hold_any_more_is_refused_as_at_a_first_start(
    begun: Ready, asked: Asked, matrix: Matrix, results: Results, host: HostFacts, notebook: Notebook
) -> None:
    updated = host.model_copy(update={"kernel": NEWER})
    why = rf"known-good-cpu may not be used here: its runs had kernel {host.kernel}, and this host has {NEWER}; "
    with pytest.raises(UserError, match=f"^{why}.*or give --force$"):
        prepare(asked, matrix, results, updated, notebook)
    forced = prepare(replace(asked, wish=Wish(None, None, force=True)), matrix, results, updated, notebook)
    assert forced.training.id == begun.training.id
    assert f"forced: {why}" in forced.told
    assert "going on with the training begun" in forced.told


def test_what_was_promoted_anew_is_gone_on_with(
    begun: Ready,
    asked: Asked,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    notebook: Notebook,
    make_evidence: Evidence,
) -> None:
    anew = promoted(results, make_evidence(kernel=NEWER, cell="cpu-no-sdma", promoted_at=2e9))
    again = prepare(asked, matrix, results, host.model_copy(update={"kernel": NEWER}), notebook)
    assert (again.training.id, again.training.begins) == (begun.training.id, ("first",))
    assert (again.training.cell, again.training.evidence, again.job.cell.id) == (anew.cell, anew, anew.cell)
    assert again.told.startswith("cpu-no-sdma: known-good-cpu, 33 of 33 runs completed; going on with the training")


@pytest.mark.parametrize(("targets", "gpus"), [((OTHER, GFX), (1,)), ((GFX, OTHER), (0,)), ((OTHER, OTHER), (0, 1))])
def test_a_tag_is_trained_with_on_gpus_of_its_target_alone(
    targets: tuple[str, ...],
    gpus: tuple[int, ...],
    asked: Asked,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    notebook: Notebook,
    make_evidence: Evidence,
) -> None:
    unlike = tuple(a_gpu(index).model_copy(update={"gfx": gfx}) for index, gfx in enumerate(targets))
    here = host.model_copy(update={"gpus": unlike})
    promoted(results, make_evidence(tag=f"known-good-{GFX}", scope=GFX, gfx=(GFX,), gpu_count=1, cell=GPU_CELL))
    # Where none is of its target it can be forced.
    forced = replace(asked, wish=Wish(None, None, force=True))
    ready = prepare(forced, matrix, results, here, notebook)
    assert ready.job.cell.id == GPU_CELL
    assert ready.bench.gpus == gpus
    assert {run.gpus for run in ready.plan.runs} == {(gpu,) for gpu in gpus}
    named = prepare(replace(asked, wish=Wish(GPU_CELL, None, force=False)), matrix, results, here, notebook)
    assert named.bench.gpus == (0, 1)
