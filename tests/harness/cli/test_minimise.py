"""Tests of `matrix minimise` and `matrix compare`, without the runs."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.campaign.bench.open_bench import BenchOptions
from harness.cli import minimise
from harness.cli.shared import Settings
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.verdicts import of_results
from harness.host.facts import HostFacts
from harness.host.fingerprint import machine_of
from harness.matrix.workloads import Workload
from harness.search.minimise import FEWEST_RUNS, Minimum
from harness.search.sequential import BinomialCount

CELL = "cpu-notes-stable"
FOUND = Minimum(
    conclusion="found",
    effect="harms",
    variables=frozenset({"GPU_MAX_HW_QUEUES"}),
    reached="confirm",
    runs=40,
    with_all=BinomialCount(1, 8),
    with_none=BinomialCount(8, 8),
    confirmed=BinomialCount(0, 5),
    without={"GPU_MAX_HW_QUEUES": BinomialCount(5, 5)},
    screened={},
    rest_too=False,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(CHECKOUT / "matrix.yaml", tmp_path, None)


@pytest.fixture
def invoke_minimise(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs the command with a search that gives the answer."""

    def run(answer: Minimum, *words: str) -> Result:
        monkeypatch.setattr(minimise, "open_bench_for", lambda *_, **__: (None, {CELL: None}))
        monkeypatch.setattr(minimise, "minimise_cell", lambda *_: answer)
        return CliRunner().invoke(minimise.minimise_command, [CELL, *words], obj=settings, catch_exceptions=False)

    return run


def test_fewer_runs_than_can_show_a_difference_are_refused_with_the_fewest_that_can(
    invoke_minimise: Callable[..., Result],
) -> None:
    assert invoke_minimise(FOUND, "--max-runs", str(FEWEST_RUNS)).exit_code == 0
    with pytest.raises(UserError, match=f"too few to show a difference; give {FEWEST_RUNS} or more"):
        invoke_minimise(FOUND, "--max-runs", str(FEWEST_RUNS - 1))


def test_what_was_found_in_words(settings: Settings, invoke_minimise: Callable[..., Result]) -> None:
    done = invoke_minimise(FOUND)
    assert done.exit_code == 0
    assert "Z runs of workload quick; --workload names another\n" in done.stderr
    assert done.stdout.splitlines() == [
        "cpu-notes-stable: the preset makes runs fail: 1 of 8 passed with all 3 variables, "
        "8 of 8 passed with none (cpu-plain).",
        "What matters: GPU_MAX_HW_QUEUES. Alone, in fresh runs: 0 of 5 passed.",
        "  without GPU_MAX_HW_QUEUES: 5 of 5 passed",
        "40 runs.",
        f"Next: {settings.invocation.command('run', 'cpu-plain')}",
        "  It runs the same stack without these variables.",
    ]


@pytest.mark.parametrize(
    ("changes", "status", "sentence"),
    [
        ({"effect": "helps"}, 0, "makes runs pass"),
        (
            {"variables": frozenset({"A", "B"})},
            0,
            "What matters: A, B. Set together, without the others, in fresh runs: 0 of",
        ),
        ({"rest_too": True}, 0, "The other variables do the same without these"),
        ({"rest_too": None}, 0, "was not seen"),
        ({"conclusion": "no-difference", "effect": None, "variables": frozenset()}, 0, "no difference shown"),
        (
            {"conclusion": "not-enough-runs", "effect": None, "variables": frozenset()},
            1,
            "not enough runs to show a difference",
        ),
        ({"conclusion": "not-enough-runs"}, 1, "So far, but not confirmed: GPU_MAX_HW_QUEUES"),
        ({"conclusion": "not-enough-runs"}, 1, "larger --max-runs continues from here"),
    ],
)
def test_every_answer_has_its_words_and_its_exit_status(
    changes: dict[str, Any], status: int, sentence: str, invoke_minimise: Callable[..., Result]
) -> None:
    done = invoke_minimise(replace(FOUND, **changes))
    assert done.exit_code == status
    assert sentence in done.stdout


@pytest.mark.parametrize("passes", [7, 8])
def test_where_runs_fail_and_the_preset_does_not_matter_isolate_is_next(
    passes: int, invoke_minimise: Callable[..., Result]
) -> None:
    alike: dict[str, Any] = {"conclusion": "no-difference", "effect": None, "variables": frozenset()}
    done = invoke_minimise(replace(FOUND, with_all=BinomialCount(passes, 8), **alike))
    assert (f"isolate {CELL}" in done.stdout) == (passes < 8)


def test_its_runs_do_what_the_last_failure_on_a_gpu_did_unless_a_workload_is_named(
    settings: Settings, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset for two GPUs changes nothing on one."""
    host = make_record().intent.host.model_copy(update={"machine": machine_of(settings.root)})
    bars = settings.results.folder / "merged.csv"
    bars.write_text("")
    data = {"path": str(bars), "sha256": "d" * 64}
    about: Any = {"data": data, "device": "cuda", "gpus": (0, 1), "host": host, "executor": "process"}
    of_control = {"cell": "rocm6.3-torch2.9.1-plain", "workload": "standard", "options": {"strategy": "ddp"}}
    record = make_record("the-run", "hung", "no-progress", **about, **of_control)
    settings.results.begin(record.intent)
    settings.results.finish(record)
    opened: list[Any] = []
    cell = "rocm6.3-torch2.9.1-no-p2p"

    def open_bench_for(options: BenchOptions, _cells: object, workload: Workload) -> Any:
        opened.append((workload.name, workload.strategy, options.data))
        return None, {cell: None, record.intent.cell: None}

    monkeypatch.setattr(minimise, "open_bench_for", open_bench_for)
    monkeypatch.setattr(minimise, "minimise_cell", lambda *_: FOUND)
    for words in ([cell], ["the-run"], [cell, "--workload", "quick"]):
        CliRunner().invoke(minimise.minimise_command, words, obj=settings, catch_exceptions=False)
    assert opened == [("standard", "ddp", bars)] * 2 + [("quick", "single", None)]


def test_json_holds_it_all(invoke_minimise: Callable[..., Result]) -> None:
    printed = json.loads(invoke_minimise(FOUND, "--json").stdout)
    assert printed["cell_of_variables"] == "cpu-notes-stable~GPU_MAX_HW_QUEUES"
    assert printed["without"] == {"GPU_MAX_HW_QUEUES": {"passes": 5, "runs": 5}}
    assert (printed["control"], printed["conclusion"], printed["runs"]) == ("cpu-plain", "found", 40)


def test_ctrl_c_says_how_to_continue(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(minimise, "open_bench_for", lambda *_, **__: (None, {CELL: None}))
    monkeypatch.setattr(minimise, "minimise_cell", interrupted)
    done = CliRunner().invoke(minimise.minimise_command, [CELL], obj=settings)
    assert done.exit_code == 130
    monkeypatch.setattr(minimise, "add_runs", interrupted)
    words = ["cpu-plain", "cpu-no-p2p", "--runs", "3"]
    assert CliRunner().invoke(minimise.compare_command, words, obj=settings).exit_code == 130


@pytest.fixture
def compare(settings: Settings) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        return CliRunner().invoke(minimise.compare_command, words, obj=settings, catch_exceptions=False)

    return run


@pytest.fixture
def recorded(settings: Settings, make_record: Callable[..., Record]) -> None:
    """Keep twelve runs of each of three cells, one of which mostly fails."""
    for cell in ("plain", "no-sdma", "no-p2p"):
        for number in range(12):
            outcome = "failed" if cell == "no-p2p" and number < 10 else "completed"
            record = make_record(f"{cell}-{number}", outcome, cell=f"cpu-{cell}", preset=cell)
            settings.results.begin(record.intent)
            settings.results.finish(record)
    Index(settings.results).rebuild()


@pytest.fixture(autouse=True)
def _of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_results, "current_hashes", lambda *_: {})


@pytest.mark.usefixtures("recorded")
def test_cells_are_compared_from_their_records(compare: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    done = compare("cpu-plain", "cpu-no-p2p", "cpu-no-sdma")
    assert done.exit_code == 0, done.output
    differ, alike = done.stdout.splitlines()
    assert "cpu-plain passed 12 of 12, cpu-no-p2p 2 of 12 (workload quick on merged.csv, " in differ
    assert "they differ, p = " in differ
    assert "no difference shown, p = 1; a pass rate of " in alike
    narrow = Console(width=40, force_terminal=True, file=(shown := io.StringIO()))
    monkeypatch.setattr(minimise, "out", narrow)
    compare("cpu-plain", "cpu-no-p2p", "cpu-no-sdma")
    assert max(map(len, shown.getvalue().splitlines())) <= 40
    assert shown.getvalue().split() == done.stdout.split()
    comparisons = json.loads(compare("cpu-plain", "cpu-no-p2p", "--json").stdout)["comparisons"]
    assert [(one["other"], one["differ"], one["two"]) for one in comparisons] == [
        ("cpu-no-p2p", True, {"passes": 2, "runs": 12})
    ]


def test_a_cell_is_compared_with_itself_across_kernels(
    settings: Settings, compare: Callable[..., Result], make_record: Callable[..., Record], host: HostFacts
) -> None:
    for number in range(29):
        old = number < 20
        kernel = host.model_copy(update={"kernel": "6.12" if old else "6.18"})
        outcome = "completed" if number < 23 else "failed"
        record = make_record(f"r{number}", outcome, host=kernel, started=1e9 + number)
        settings.results.begin(record.intent)
        settings.results.finish(record)
    (line,) = compare("--across", "kernel").stdout.splitlines()
    assert line.startswith("cpu-plain: 6.12: 20 of 20; 6.18: 3 of 9 (")
    printed = json.loads(compare("--across", "kernel", "cpu-plain", "--json").stdout)
    assert (printed["schema"], printed["across"]) == (2, "kernel")
    (one,) = printed["comparisons"]
    assert (one["before"]["value"], one["newest"]["passes"], one["differ"]) == ("6.12", 3, True)
    with pytest.raises(UserError, match="no runs with another parameter that can be compared"):
        compare("--across", "parameters")
    with pytest.raises(UserError, match=r"unknown cell 'cpu-plan'"):
        compare("--across", "kernel", "cpu-plan")
    with pytest.raises(UserError, match="leave --runs out"):
        compare("--across", "kernel", "--runs", "3")


@pytest.mark.parametrize("words", [(), ("cpu-plain",), ("cpu-plain", "cpu-plain")])
def test_two_different_cells_are_needed(words: tuple[str, ...], compare: Callable[..., Result]) -> None:
    with pytest.raises(
        UserError, match="two different cells or more; there are no runs yet: `matrix compare cpu-plain "
    ):
        compare(*words)


@pytest.mark.usefixtures("recorded")
def test_without_cells_those_that_have_runs_are_named(compare: Callable[..., Result]) -> None:
    with pytest.raises(
        UserError, match="runs of cpu-no-p2p, cpu-no-sdma, cpu-plain: `matrix compare cpu-no-p2p cpu-no-"
    ):
        compare()


def test_without_runs_it_says_how_to_make_some(compare: Callable[..., Result]) -> None:
    with pytest.raises(UserError, match=r"; `matrix compare \S+ \S+ --runs 20` makes some"):
        compare("cpu-plain", "cpu-no-p2p")
    with pytest.raises(UserError, match="-plain needs an AMD GPU, and this host has none"):
        compare("cpu-plain", "rocm6.3-torch2.9.1-plain")
    with pytest.raises(UserError, match=r"unknown cell 'cpu-plan'.*cpu-plain"):
        compare("cpu-plan", "cpu-no-p2p")


@pytest.mark.usefixtures("recorded")
def test_runs_are_added_to_the_workload_that_is_then_compared(
    compare: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Any] = []

    def add_runs(*words: object) -> str:
        added.append(words[3])
        return "b" * 64

    monkeypatch.setattr(minimise, "open_bench_for", lambda *_, **__: ("bench", "placed"))
    monkeypatch.setattr(minimise, "add_runs", add_runs)
    assert "12 of 12" in compare("cpu-plain", "cpu-no-p2p", "--runs", "12").stdout
    assert added == [12]
    monkeypatch.setattr(minimise, "add_runs", lambda *_: "another workload")
    with pytest.raises(UserError, match="no runs of cpu-plain"):
        compare("cpu-plain", "cpu-no-p2p", "--runs", "12")
