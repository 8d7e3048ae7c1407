import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from itertools import chain
from typing import Any

import pytest
from rich.console import Console

from harness.base.paths import CHECKOUT
from harness.campaign.answered import Command, LastAnswer
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import REFUSED, count_runs
from harness.evidence.verdicts.exposure_rates import mtbf_bound
from harness.evidence.verdicts.missing import Shortfall
from harness.evidence.verdicts.recommend import NamedCell, that_train
from harness.evidence.verdicts.totals import Life, Totals
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.evidence.verdicts.words import TIERS_IN_WORDS
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.report.invocation import AS_MADE, Invocation
from harness.report.markdown import to_markdown
from harness.report.model import Answer, Report
from harness.report.page import to_html
from harness.report.sections.answer import answer_of
from harness.report.sections.failures import Failure, failures
from harness.report.sections.next_steps import what_next
from harness.report.sections.of_host import OfHost, with_newest_program
from harness.report.sections.of_program import answer_of_program
from harness.screen.answer import print_answer
from harness.search.stages.conclusion import conclude_stages
from harness.search.stages.contenders import Contender
from harness.search.stages.runs import Setting
from harness.search.stages.search import StageEnd

MakeRows = Callable[..., list[Row]]
STACK = "rocm6.3-torch2.9.1"
STEP = Command(command="matrix run", why="runs")
TWO: dict[str, Any] = {"options": {"strategy": "ddp", "devices": 2}, "gpus": (0, 1)}
OWN = {"command": "python train.py", "source": "/home/me/code"}
NO_P2P = NamedCell(f"{STACK}-no-p2p", "ddp")


def key_of_tag(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.cell, verdict.environment_hash, verdict.scope


def known_of(matrix: Matrix, here: Sequence[Verdict], found: Sequence[Failure] = (), tags: Any = None) -> OfHost:
    return OfHost(here, that_train(here, matrix), found, {}, tags or {}, (STEP,))


def a_contender(matrix: Matrix, cell: str, totals: Totals) -> Contender:
    return Contender(
        setting=Setting(matrix.cells[cell], "ddp"),
        stage=matrix.stages["two-gpus"],
        gpus=(0, 1),
        lanes=((0, 1),),
        rank=0,
        totals=totals,
        confidence=0.95,
        is_good=True,
        missing=Shortfall(0, 0.0, 0),
        long_runs=0,
        seconds_needed=0.0,
        seconds_of_another=0.0,
    )


@pytest.fixture
def answer(matrix: Matrix) -> Callable[..., Answer]:
    def make(*rows: list[Row], gpus: int = 2, tags: Any = None) -> Answer:
        every = list(chain(*rows))
        here = judge(every, {}, matrix.verdicts)
        return answer_of(known_of(matrix, here, failures(here, every, count_runs(every)), tags), matrix, gpus)

    return make


@pytest.fixture
def on_gpus(make_rows: MakeRows, dual_host: HostFacts) -> MakeRows:
    def make(preset: str, passes: int, failed: int = 0, **changes: Any) -> list[Row]:
        return make_rows(
            f"{STACK}-{preset}", passes, failed, **{"host": dual_host, "device": "cuda", "gpus": (0,), **changes}
        )

    return make


def test_both_gpus_come_first_where_a_cell_is_reliable_on_them(
    answer: Callable[..., Answer], on_gpus: MakeRows, make_rows: MakeRows
) -> None:
    sentence = answer(on_gpus("plain", 40), on_gpus("no-p2p", 40, **TWO), make_rows("cpu-plain", 40)).sentence
    assert sentence.startswith(
        f"Use `{STACK}-no-p2p` on two GPUs (gfx1100) with ddp, which is known-good: "
        "40 of 40 starts, 40.0 h of training, no failure, 2 boots, workload `quick on merged.csv`; 10 h of training "
    )
    assert sentence.count(". ") == 0


def test_where_little_is_shown_it_is_about_the_bars_of_the_newest_run(
    answer: Callable[..., Answer], make_rows: MakeRows
) -> None:
    def sentence(*rows: list[Row]) -> str:
        return answer(*rows).sentence

    own = [row._replace(family="lookback 25", data="mine.csv") for row in make_rows("cpu-plain", 2)]
    others = [row._replace(finished=row.finished + 1) for row in make_rows("cpu-plain", 1)]
    assert "1 of 1 starts, 1.0 h of training, no failure, 1 boot, workload `quick on merged.csv`" in sentence(
        own, others
    )
    enough = [row._replace(family="lookback 25", data="mine.csv") for row in make_rows("cpu-plain", 40)]
    assert "40 of 40 starts" in sentence(enough, make_rows("cpu-plain", 1))


def test_an_image_of_uncommitted_changes_is_no_answer(answer: Callable[..., Answer], make_rows: MakeRows) -> None:
    sentence = answer(make_rows("cpu-plain", 40, executor="docker", revision=f"{'c' * 40}-dirty")).sentence
    assert sentence.startswith("`cpu-plain` trained on")
    assert "but its image was made from changes that no commit has, so that it is `seen` at most" in sentence


def test_jax_is_never_what_to_train_with(
    answer: Callable[..., Answer], on_gpus: MakeRows, make_rows: MakeRows, dual_host: HostFacts
) -> None:
    cell = "rocm7.14.0-jax0.10.0-plain"
    by_jax = make_rows(cell, 40, host=dual_host, device="cuda", gpus=(0,))
    both = answer(on_gpus("plain", 10), by_jax)
    assert f"`{STACK}-plain`" in both.sentence
    assert cell not in both.sentence
    assert "rocm7.14.0-jax0.10.0" in both.grids[0].stacks
    assert answer(by_jax).sentence.startswith("On this kind of host only runs of JAX count")


def test_a_mistake_in_a_program_of_the_users_own_moves_no_answer(
    answer: Callable[..., Answer], make_rows: MakeRows
) -> None:
    """The sentence and the cell's place in the grid stay the same, but the failure is reported."""
    rows = make_rows("cpu-plain", 2) + make_rows("cpu-no-sdma", 1)
    typo = make_rows("cpu-plain", 0, 3, "app-error", program=OWN, workload="app-mine", family="mine")
    long = make_rows("cpu-no-sdma", 9, program=OWN, workload="app-long", family="long")
    assert answer(rows, long).grids == answer(rows).grids
    found = answer(rows, typo)
    assert found.sentence == answer(rows).sentence
    assert "`cpu-plain`" in found.sentence
    assert found.grids == answer(rows).grids
    assert found.failures[0].startswith("`app-error`: 3 of 6 counted runs, in `cpu-plain`.")


def test_the_answer_of_a_programs_campaign_is_about_the_program(matrix: Matrix, make_rows: MakeRows) -> None:
    ours = make_rows("cpu-no-sdma", 3) + make_rows("cpu-plain", 2)
    before = make_rows("cpu-no-sdma", 9, program=OWN, workload="app-before", family="before")
    mine = [
        row._replace(finished=row.finished + 60)
        for row in make_rows("cpu-no-sdma", 1, 1, "app-error", program=OWN, workload="app-mine", family="mine")
    ]
    # What other programs did in other cells would look as if a preset made the difference.
    before += make_rows("cpu-notes-stable", 1, program=OWN, workload="app-mine", family="before")
    here = with_newest_program(judge([*ours, *before, *mine], {}, matrix.verdicts))
    sentence, step = answer_of_program(mine, Invocation("matrix"))
    known = replace(known_of(matrix, here), steps=(step,), train_now=STEP)
    found = answer_of(known, matrix, 0, LastAnswer(None, sentence, of_program=True))
    assert found.sentence.startswith("Your program completed in 1 of 2 runs, in `cpu-no-sdma`; its numbers are not")
    assert (found.next.command, found.train_now) == (f"matrix explain {mine[1].run_id}", None)
    grids = {grid.title: [place.text for place in grid.places] for grid in found.grids}
    assert grids == {
        "On the CPU, workload app-mine": ["1/2 flaky"],
        "On the CPU, workload quick": ["2/2 seen", "3/3 seen"],
    }
    assert answer_of_program(mine[:1], Invocation("matrix"))[1].command == "matrix status cpu-no-sdma"


def test_a_misspelt_option_of_a_program_is_no_failure_to_complete(make_rows: MakeRows) -> None:
    detail = "the train process ended with exit 2 before its first step: 'error: unrecognized arguments: --epochz'"
    refused = make_rows("cpu-plain", 0, 1, "refused", program=OWN, workload="app-mine", detail=detail)
    sentence, step = answer_of_program(refused, Invocation("matrix"))
    assert sentence == f"Your program refused its command in `cpu-plain`, so nothing was tried: {detail}."
    assert step.command == f"matrix explain {refused[0].run_id}"
    later = make_rows("cpu-plain", 1, program=OWN, workload="app-mine")
    assert answer_of_program([*refused, *later], Invocation("matrix"))[0].startswith("Your program completed in 1 of 2")


def test_programs_of_the_users_own_alone_name_no_cell(
    answer: Callable[..., Answer], make_rows: MakeRows, matrix: Matrix
) -> None:
    own = make_rows("cpu-plain", 40, program=OWN, workload="app-mine")
    assert answer(own).sentence.startswith("On this kind of host no run of this project's training counts yet: of pro")
    here = judge(own, {}, matrix.verdicts)
    assert answer_of(known_of(matrix, here), matrix, 0, LastAnswer(None, "It is good.")).sentence == "It is good."


def test_one_gpu_is_the_answer_where_two_fail_and_that_is_said(
    answer: Callable[..., Answer], on_gpus: MakeRows
) -> None:
    sentence = answer(on_gpus("plain", 40), on_gpus("plain", 0, 3, **TWO)).sentence
    assert sentence.startswith(f"Use `{STACK}-plain` on one GPU (gfx1100), which is known-good")
    assert sentence.endswith(
        f"on two GPUs (gfx1100) with ddp the best, `{STACK}-plain`, is failing, 3 of 3 runs failed."
    )
    assert answer(on_gpus("plain", 40)).sentence.endswith("on two GPUs nothing was run.")
    assert "two GPUs" not in answer(on_gpus("plain", 40), gpus=1).sentence


def test_a_pass_on_the_cpu_never_hides_what_gpus_did(
    answer: Callable[..., Answer], on_gpus: MakeRows, make_rows: MakeRows
) -> None:
    sentence = answer(on_gpus("plain", 0, 3), make_rows("cpu-plain", 40)).sentence
    assert sentence.startswith(
        f"No cell is yet shown to train to the end on one GPU (gfx1100): all 3 runs of `{STACK}-plain` failed, "
        "most often for `crash`"
    )
    assert answer(make_rows("cpu-plain", 40)).sentence.endswith("it says nothing about GPUs.")


def test_where_nothing_passes_no_cell_is_called_the_best(answer: Callable[..., Answer], on_gpus: MakeRows) -> None:
    fails = (
        on_gpus("plain", 0, 2, diagnosis="oom"),
        on_gpus("no-sdma", 0, 3),
        on_gpus("plain", 0, 2, diagnosis="oom", family="f" * 64),
    )
    assert "(gfx1100): all 7 runs of 2 cells failed, most often for `oom`;" in answer(*fails).sentence
    assert f"(gfx1100): the only run of `{STACK}-plain` failed, most" in answer(on_gpus("plain", 0, 1)).sentence
    now = answer(*fails, on_gpus("no-sdma", 1)).sentence
    assert f"(gfx1100): the best, `{STACK}-no-sdma`, is flaky, 3 of 4 runs failed, most often for `crash`" in now


def test_the_answer_has_the_hours_of_what_was_interrupted(answer: Callable[..., Answer], make_rows: MakeRows) -> None:
    ended = [row._replace(outcome="interrupted", interrupted_by="ctrl-c") for row in make_rows("cpu-plain", 1)]
    sentence = answer([row._replace(exposure_seconds=8 * 3600.0) for row in ended]).sentence
    assert sentence == "No run on this kind of host counts yet; the interrupted ones trained 8.0 h."


def test_the_criteria_end_the_sentence(matrix: Matrix, make_rows: MakeRows) -> None:
    here = judge(make_rows("cpu-plain", 1), {}, matrix.verdicts)
    found = answer_of(known_of(matrix, here), matrix, 2, criteria="of the criteria `immediate` is met")
    assert found.sentence.endswith(". Of the criteria `immediate` is met.")


def test_the_answer_says_where_the_app_refused_its_command(answer: Callable[..., Answer], make_rows: MakeRows) -> None:
    rows = [row for cell in ("cpu-plain", "cpu-no-sdma") for row in make_rows(cell, 0, 2)]
    told = answer([row._replace(diagnosis=REFUSED, first_step=False) for row in rows]).sentence
    assert told == (
        "No run on this kind of host counts yet; the app refused its command in `cpu-no-sdma` and `cpu-plain`."
    )


def test_a_few_passes_promise_no_hours(answer: Callable[..., Answer], on_gpus: MakeRows) -> None:
    sentence = answer(on_gpus("plain", 2)).sentence
    assert sentence.startswith(
        "Too few runs yet to name a cell that trains to the end on one GPU (gfx1100): the most promising so far is"
    )
    assert "too little to say what 10 h of training can expect, and more runs may put another cell" in sentence


def test_an_image_is_named_by_its_tag(answer: Callable[..., Answer], on_gpus: MakeRows) -> None:
    rows = on_gpus("plain", 40, executor="docker")
    tags = {(rows[0].cell, rows[0].environment_hash, "gfx1100"): "known-good-gfx1100"}
    assert f"`{STACK}-plain` (image `known-good-gfx1100`)" in answer(rows, tags=tags).sentence


def test_the_grid_has_every_scope_gpus_first_with_what_was_not_run_or_is_excluded(
    answer: Callable[..., Answer], on_gpus: MakeRows, make_rows: MakeRows, dual_host: HostFacts
) -> None:
    newer = {"host": dual_host, "device": "cuda", "gpus": (0,)}
    other = make_rows("rocm7.1-torch2.10.0-expandable-segments", 1, **newer)
    grids = answer(make_rows("cpu-plain", 1), on_gpus("plain", 2), on_gpus("plain", 1, 1, **TWO), other).grids
    assert [one.title for one in grids] == [
        "On two GPUs (gfx1100) with ddp, workload quick",
        "On one GPU (gfx1100), workload quick",
        "On the CPU, workload quick",
    ]
    assert {place.cell: place.text for place in grids[1].places} == {
        f"{STACK}-plain": "2/2 seen",
        f"{STACK}-expandable-segments": "excluded",
        "rocm7.1-torch2.10.0-plain": "untested",
        "rocm7.1-torch2.10.0-expandable-segments": "1/1 seen",
    }


def test_no_grid_shows_the_runs_of_an_environment_that_has_changed(matrix: Matrix, make_rows: MakeRows) -> None:
    rows = [*make_rows("cpu-plain", 2), *make_rows("cpu-no-sdma", 3)]
    here = judge(rows, {("cpu-no-sdma", "process"): "another"}, matrix.verdicts)
    (grid,) = answer_of(known_of(matrix, here), matrix, 0).grids
    texts = {place.cell: place.text for place in grid.places}
    assert (texts["cpu-plain"], texts.get("cpu-no-sdma", "untested")) == ("2/2 seen", "untested")


def test_the_title_of_a_grid_counts_the_runs_that_were_imported(
    answer: Callable[..., Answer], make_rows: MakeRows
) -> None:
    others = [row._replace(imported=True) for row in make_rows("cpu-no-sdma", 2)]
    (grid,) = answer(make_rows("cpu-plain", 1), others).grids
    assert grid.title == "On the CPU, workload quick, with 2 imported runs"


def test_of_the_grids_of_as_many_gpus_that_of_the_answer_comes_first(
    answer: Callable[..., Answer], on_gpus: MakeRows
) -> None:
    averaging = {**TWO, "options": {**TWO["options"], "strategy": "averaging"}}
    for good, other, named in ((TWO, averaging, "ddp"), (averaging, TWO, "averaging")):
        found = answer(on_gpus("plain", 40, **good), on_gpus("plain", 1, 1, **other))
        assert f" with {named}, which is " in found.sentence
        assert found.grids[0].title == f"On two GPUs (gfx1100) with {named}, workload quick"


def test_a_grid_names_the_workload_of_most_cells_and_that_of_the_others(
    answer: Callable[..., Answer], make_rows: MakeRows
) -> None:
    most = make_rows("cpu-plain", 1) + make_rows("cpu-no-sdma", 1)
    found = answer(most, make_rows("cpu-notes-stable", 1, workload="soak"))
    (grid,) = found.grids
    assert grid.title == "On the CPU, workload quick"
    assert {place.cell: place.work for place in grid.places} == {
        "cpu-plain": "", "cpu-no-sdma": "", "cpu-notes-stable": "soak"
    }  # fmt: skip
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        print_answer(console, found)
    assert "1/1 seen (soak)" in captured.get()


def test_a_grid_shows_the_workload_whose_runs_count_before_one_of_which_none_does(
    answer: Callable[..., Answer], on_gpus: MakeRows
) -> None:
    (row,) = on_gpus("no-sdma", 1, options={"loop": "plain", "vpoc_path": "naive"})
    stopped = row._replace(outcome="interrupted", interrupted_by="ctrl-c")
    (grid,) = answer([stopped], on_gpus("no-sdma", 3, family="f" * 64)).grids
    (place,) = grid.places
    assert place.text == "3/3 seen"


def test_the_grid_has_the_figures_that_the_answer_is_about(answer: Callable[..., Answer], make_rows: MakeRows) -> None:
    own = [row._replace(exposure_seconds=10.0) for row in make_rows("cpu-plain", 4, family="f" * 64)]
    longer = [row._replace(exposure_seconds=15.0) for row in make_rows("cpu-plain", 3)]
    found = answer(own, longer)
    assert "4 of 4 starts" in found.sentence
    assert [place.text for grid in found.grids for place in grid.places] == ["4/4 seen"]


def test_a_place_tells_what_is_shown_of_starts_and_hours_and_why_it_is_excluded(
    answer: Callable[..., Answer], on_gpus: MakeRows, make_rows: MakeRows, dual_host: HostFacts, matrix: Matrix
) -> None:
    of_gpu = {"host": dual_host, "device": "cuda", "gpus": (0,)}
    newer = make_rows("rocm7.1-torch2.10.0-expandable-segments", 1, **of_gpu)
    newer = [row._replace(exposure_seconds=None) for row in newer]
    (grid,) = answer(on_gpus("plain", 40), newer, gpus=1).grids
    by_cell = {place.cell: place for place in grid.places}
    plain, few = by_cell[f"{STACK}-plain"], by_cell["rocm7.1-torch2.10.0-expandable-segments"]
    assert plain.start_low is not None
    assert 0.9 < plain.start_low < 1
    assert plain.starts == f"starts above {int(plain.start_low * 100)} %"
    shown = mtbf_bound(0, 40.0, matrix.verdicts.confidence)
    assert plain.mtbf == f"MTBF above {int(shown * 10) / 10} h"
    assert few.mtbf == "no MTBF yet: no failure in 0 s of training"
    excluded, untested = by_cell[f"{STACK}-expandable-segments"], by_cell["rocm7.1-torch2.10.0-plain"]
    assert (excluded.start_low, excluded.reason is None) == (None, False)
    assert (untested.start_low, untested.reason, untested.starts, untested.mtbf) == (None, None, "", "")


def test_at_most_three_failures_are_named(answer: Callable[..., Answer], make_rows: MakeRows) -> None:
    rows = [make_rows("cpu-plain", 0, number, f"way-{number}") for number in (1, 2, 3, 4)]
    lines = answer(*rows).failures
    assert [line.split("`")[1] for line in lines] == ["way-4", "way-3", "way-2"]
    assert answer(make_rows("cpu-plain", 1)).failures == ()


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_no_name_is_broken_and_no_line_too_long(synthetic: Report, width: int) -> None:
    console = Console(width=width, force_terminal=True, no_color=True, highlight=False, record=True, quiet=False)
    with console.capture() as captured:
        print_answer(console, synthetic.answer)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).splitlines()
    assert max(len(line) for line in lines if not line.startswith(("Next: ", "Or train now: "))) <= width
    for grid in synthetic.answer.grids:
        for name in (*grid.stacks, *grid.presets):
            assert any(name in line.split() for line in lines)
    assert f"Next: {synthetic.answer.next.command}" in lines
    assert lines[lines.index(f"Next: {synthetic.answer.next.command}") + 2].startswith("  ")
    assert TIERS_IN_WORDS in lines


@pytest.mark.slow
def test_terminal_page_markdown_and_json_have_the_same_words(synthetic: Report) -> None:
    answer = synthetic.answer
    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        print_answer(console, answer)
    page = unescape(re.sub("<[^>]*>", "", to_html(synthetic).split('<script type="application/json"')[0]))
    # No line ends between a number and its unit.
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    texts = {"terminal": captured.get(), "page": page, "markdown": unescape(to_markdown(synthetic))}
    for name, text in texts.items():
        for sentence in (answer.sentence, *answer.failures):
            expected = sentence.replace("`", "") if name == "page" else sentence
            assert expected in text, name
        assert answer.next.command in text, name
        assert TIERS_IN_WORDS.partition(";")[0] in text, name
        assert answer.next.why.replace("`", "" if name == "page" else "`") in text, name
    assert synthetic.model_dump(mode="json")["answer"] == answer.model_dump(mode="json")


def test_a_campaign_that_has_just_ended_is_reported_in_its_own_words(
    matrix: Matrix, on_gpus: MakeRows, answer: Callable[..., Answer]
) -> None:
    here = judge(on_gpus("plain", 40), {}, matrix.verdicts)
    ended = LastAnswer(None, "The time is over.")
    found = answer_of(known_of(matrix, here), matrix, 2, ended, "of the criteria `full` is met")
    assert found.sentence == "The time is over. Of the criteria `full` is met."
    assert found.grids == answer(on_gpus("plain", 40)).grids


class TestOfTheNamedCell:
    """After the conclusion of a campaign, the answer says how its cell ran and what a training in it can expect."""

    SENTENCE = f"{STACK}-no-p2p is good."

    @pytest.fixture
    def sentence(self, matrix: Matrix, on_gpus: MakeRows) -> Callable[..., str]:
        def sentence(
            tags: Any = None, named: NamedCell | None = NO_P2P, *, of_program: bool = False, **changes: Any
        ) -> str:
            here = judge(on_gpus("no-p2p", 24, **TWO, **changes), {}, matrix.verdicts)
            found = {key_of_tag(here[0]): tag for tag in (tags or [])}
            last = LastAnswer(named, self.SENTENCE, of_program=of_program)
            return answer_of(known_of(matrix, here, tags=found), matrix, 2, last).sentence

        return sentence

    def test_it_is_an_image_with_its_tag(self, sentence: Callable[..., str]) -> None:
        text = sentence(executor="docker")
        assert text.startswith(f"{self.SENTENCE} It ran in image `vpoc:{STACK}-no-p2p`; 10 h of training end ")
        assert "`known-good`;" in sentence(["known-good"], executor="docker")

    def test_or_a_process_in_the_environment_of_its_stack(self, sentence: Callable[..., str]) -> None:
        assert "good. It ran as processes in the environment of stack `rocm6.3-torch2.9.1`; 10 h" in sentence()

    def test_of_another_cell_nothing_is_said(self, sentence: Callable[..., str]) -> None:
        assert sentence(named=NamedCell(f"{STACK}-plain", "ddp")) == sentence(named=None) == self.SENTENCE
        # Runs of this project's app do not tell what a program of the user's can expect.
        assert sentence(of_program=True) == self.SENTENCE

    def test_it_is_out_of_date_only_where_all_its_runs_are_stale(self, matrix: Matrix, on_gpus: MakeRows) -> None:
        old = on_gpus("no-p2p", 24, environment_hash="old", **TWO)
        for rows, said in ((old, True), ([*old, *on_gpus("no-p2p", 2, **TWO)], False)):
            now = {(old[0].cell, old[0].executor): "new" if said else rows[-1].environment_hash}
            here = judge(rows, now, matrix.verdicts)
            text = answer_of(known_of(matrix, here), matrix, 2, LastAnswer(NO_P2P, self.SENTENCE)).sentence
            assert ("But all its runs are stale" in text) is said

    def test_one_that_runs_since_surpass_is_not_called_the_most_promising_so_far(
        self, matrix: Matrix, make_rows: MakeRows
    ) -> None:
        here = judge(make_rows("cpu-plain", 1) + make_rows("cpu-no-sdma", 2), {}, matrix.verdicts)
        for cell, of in (("cpu-plain", "of the last campaign"), ("cpu-no-sdma", "so far")):
            last = LastAnswer(NamedCell(cell, "single"))
            text = answer_of(known_of(matrix, here), matrix, 0, last).sentence
            assert f"the most promising {of} is `{cell}`" in text

    def test_the_page_for_users_shows_it_so(
        self, sentence: Callable[..., str], matrix: Matrix, on_gpus: MakeRows
    ) -> None:
        shown = (CHECKOUT / "docs/my-gpu-hangs.md").read_text(encoding="utf-8")
        lives = (Life(3.0), Life(3.0), Life(1.1, failed=True))
        totals = Totals(started=24, starts=24, failures=1, lives=lives, boots=1)
        good = a_contender(matrix, f"{STACK}-no-p2p", totals)
        concluded = conclude_stages(StageEnd("good", good, (good,), (), ()), 2).sentence
        best = judge(on_gpus("no-p2p", 24, **TWO, executor="docker"), {}, matrix.verdicts)[0]
        (step, *_) = what_next(replace(best, tier="good"), [], {}, {}, [best.cell], {}, matrix, AS_MADE, [best])
        for text, begins in (
            (concluded, "is good: "),
            (sentence(executor="docker").removeprefix(f"{self.SENTENCE} "), "It ran in image"),
            (f"Next: {step.command}", "Next: "),
        ):
            (line,) = [one.strip() for one in shown.splitlines() if begins in one and one.startswith("    ")]
            assert re.match(".*".join(map(re.escape, line.split(" ..."))), text), (line, text)


def test_a_grid_without_presets_is_printed(synthetic: Report) -> None:
    grid = synthetic.answer.grids[0].model_copy(update={"presets": (), "places": ()})
    console = Console(width=80)
    with console.capture() as captured:
        print_answer(console, synthetic.answer.model_copy(update={"grids": (grid,)}))
    assert grid.stacks[0] in captured.get()
