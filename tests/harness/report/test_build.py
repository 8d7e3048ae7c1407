import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from jsonschema import Draft202012Validator

from harness.cli.schemas import SCHEMAS
from harness.evidence.files.app_files import MemoryPeaks, Training
from harness.evidence.files.run_files import Explanation, HealthStep, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import options_of, workload_hash
from harness.registry.tags.promotions import KnownGood
from harness.report import build
from harness.report.build import NEWEST, NEWEST_FAILED, build_report
from harness.report.invocation import AS_MADE
from harness.report.junit import to_junit
from harness.report.markdown import to_markdown
from harness.report.model import GridPlace, Report
from harness.report.page import to_html
from harness.report.reader import Reader
from harness.report.sections import of_host
from harness.report.sections.grid import group_ids, key_of
from tests.harness.report.synthetic import KINDS, synthetic_records
from tests.harness.right_result import DATA

Make = Callable[..., Record]
ReportOf = Callable[..., Report]


@pytest.fixture
def records(make_record: Make) -> list[Record]:
    return [
        make_record("r1", started=1e9),
        make_record(
            "r2", started=2e9, outcome="failed", diagnosis="crash", detail="the train process ended with SIGSEGV"
        ),
        make_record("r3", started=3e9, outcome="interrupted"),
        make_record("r4", started=4e9, cell="cpu-no-sdma", preset="no-sdma"),
    ]


def place(report: Report, cell: str) -> GridPlace:
    (found,) = [one for group in report.groups for one in group.places if one.cell == cell]
    return found


def test_the_headline_counts_what_was_run(records: list[Record], report_of: ReportOf) -> None:
    assert report_of(records).headline == "4 runs of 2 cells: 2 completed, 1 failed, 1 interrupted."


def test_the_grid_counts_neither_interrupted_runs_nor_host_faults(records: list[Record], report_of: ReportOf) -> None:
    report = report_of(records)
    assert (place(report, "cpu-plain").count.passes, place(report, "cpu-plain").count.runs) == (1, 2)
    assert place(report, "cpu-plain").count.tier == "flaky"
    assert place(report, "cpu-no-sdma").count.tier == "seen"


def test_runs_with_uncommitted_changes_do_not_hide_those_without(make_record: Make, report_of: ReportOf) -> None:
    runs = [make_record(f"r{number}", started=1e9 + number, revision="c" * 40) for number in range(5)]
    dirty = [make_record(f"s{number}", started=2e9 + number, revision=f"{'c' * 40}-dirty") for number in range(2)]
    report = report_of([*runs, *dirty])
    count = place(report, "cpu-plain").count
    assert (count.tier, count.passes, count.runs) == ("candidate", 5, 5)
    (case,) = Xml.fromstring(to_junit(report)).iter("testcase")
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert (properties["tier"], properties["runs"]) == ("candidate", "5")


def test_commands_in_the_answer_are_named_as_they_are_typed(records: list[Record], report_of: ReportOf) -> None:
    (failure,) = report_of(records).answer.failures
    assert "`.venv/bin/matrix explain r2`" in failure


@pytest.mark.parametrize("change", ["workload", "host", "executor", "scope"])
def test_the_grid_never_pools_what_may_not_be_counted_together(
    make_record: Make, report_of: ReportOf, host: HostFacts, change: str
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "workload": {"family": "e" * 64},
        "host": {"host": host.model_copy(update={"kind": "another"})},
        "executor": {"executor": "docker"},
        "scope": {"options": {"strategy": "ddp", "devices": 2}},
    }
    report = report_of([make_record("r1"), make_record("r2", started=2e9, **changes[change])])
    assert [one.count.runs for group in report.groups for one in group.places] == [1, 1]


def test_groups_of_one_workload_say_what_their_runs_had_otherwise(make_record: Make, report_of: ReportOf) -> None:
    options = make_record().intent.options
    long, short = ({"options": {**options, "lookback": number}, "family": f"{number}" * 32} for number in (60, 30))
    # No option distinguishes the workload of this run from the first, so the hash of its family does.
    alike = {**long, "family": "e" * 64}
    records = [make_record(f"r{n}", started=1e9 + n, **made) for n, made in enumerate((long, short, alike))]
    works = {group.work.partition(" on merged.csv ")[2] for group in report_of(records).groups}
    assert works == {"(--lookback 60, 60606060)", "(--lookback 30)", "(--lookback 60, eeeeeeee)"}


def test_stale_runs_are_shown_and_not_in_the_grid(records: list[Record], report_of: ReportOf) -> None:
    report = report_of(records, {("cpu-plain", "process"): "another hash"})
    assert place(report, "cpu-plain").count.tier == "untested"
    assert place(report, "cpu-plain").reason == "none of its runs counts"
    assert any("stale" in caution for caution in report.cautions)
    assert {run.uncounted for run in report.runs if run.cell == "cpu-plain"} == {"stale", "interrupted"}


def test_runs_from_before_a_host_changed_are_stale_and_the_caution_says_what_changed(
    make_record: Make, report_of: ReportOf, dual_host: HostFacts
) -> None:
    records = [
        make_record(
            f"r{n}",
            device="cuda",
            gpus=(0,),
            started=1e9 + n,
            host=dual_host.model_copy(update={"kernel_parameters": {"amdgpu.mes": str(n // 2)}}),
        )
        for n in range(3)
    ]
    report = report_of(records)
    assert {run.run_id: run.uncounted for run in report.runs} == {"r0": "stale", "r1": "stale", "r2": None}
    assert place(report, "cpu-plain").count.runs == 1
    assert [one.changed for one in report.verdicts if one.stale] == [("amdgpu.mes was 0, is 1",)]
    assert "Runs of `cpu-plain` from before their host changed are stale: amdgpu.mes was 0, is 1." in report.cautions


def test_a_run_after_which_a_gpu_is_unhealthy_is_shown_as_failed_though_it_completed(
    make_record: Make, report_of: ReportOf, make_step: Callable[..., HealthStep]
) -> None:
    records = [make_record(f"r{number}", started=1e9 + number, gpus=(0,)) for number in range(3)]
    report = report_of(records, steps=[make_step(good=False, at=1e9 + 9, run_id="r3", when="before-run")])
    assert (place(report, "cpu-plain").count.passes, place(report, "cpu-plain").count.runs) == (2, 3)
    (caution,) = [text for text in report.cautions if "unhealthy" in text]
    assert caution.startswith("A GPU was reset, or found unhealthy, after 1 run: each of them counts as failed")
    (line,) = [run for run in report.runs if run.run_id == "r2"]
    assert (line.outcome, line.failed, line.diagnosis, line.uncounted) == ("completed", True, "unhealthy-gpu", None)
    assert line.why_counted_so.startswith("GPU 0 failed the next probe after it")
    assert "1 of 3 counted runs" in report.answers.failures[0]


def test_a_run_that_was_struck_out_is_shown_with_its_reason(
    make_record: Make, report_of: ReportOf, tmp_path: Path
) -> None:
    records = [make_record("r1"), make_record("r2", "failed", "crash", started=1e9 + 1)]
    report = report_of(records, struck={"r2": "a power cut"})
    assert (place(report, "cpu-plain").count.passes, place(report, "cpu-plain").count.runs) == (1, 1)
    assert "Run r2 was struck out by hand, and does not count: a power cut." in report.cautions
    (line,) = [run for run in report.runs if run.run_id == "r2"]
    assert (line.uncounted, line.failed) == ("struck", False)
    assert "a power cut" in line.why_counted_so


def test_a_run_with_an_injected_fault_is_shown_and_never_counted(make_record: Make, report_of: ReportOf) -> None:
    faulty = make_record("r5", injected_fault="flip-gradient@3/1", outcome="failed", diagnosis="injected-fault")
    report = report_of([make_record("r1"), faulty])
    assert report.headline == "1 run of 1 cell: 1 completed."
    assert place(report, "cpu-plain").count.runs == 1
    assert [one.runs for one in report.verdicts] == [1]
    assert any("1 run with a fault injected on purpose" in caution for caution in report.cautions)
    assert report.details["r5"].injected_fault == "flip-gradient@3/1"


def test_imported_runs_can_be_left_out(make_record: Make, report_of: ReportOf) -> None:
    report = report_of([make_record("r1"), make_record("r2", started=2e9)], imported={"r2"})
    found = place(report, "cpu-plain")
    assert (found.count.runs, found.own.runs) == (2, 1)
    assert any("1 run was imported from other hosts" in caution for caution in report.cautions)
    assert "Of these runs, 1 came from other hosts by import." in report.answers.use[0]


def test_an_excluded_cell_of_a_grid_has_its_reason(make_record: Make, report_of: ReportOf, matrix: Matrix) -> None:
    stacks = {"stack": "rocm6.3-torch2.9.1", "device": "cuda"}
    report = report_of(
        [
            make_record("r1", cell="rocm6.3-torch2.9.1-plain", **stacks),
            make_record("r2", cell="rocm7.1-torch2.10.0-expandable-segments", preset="expandable-segments", **stacks),
        ]
    )
    excluded = matrix.cells["rocm6.3-torch2.9.1-expandable-segments"]
    found = place(report, excluded.id)
    assert (found.count.tier, found.reason) == ("excluded", excluded.excluded)


def test_every_excluded_cell_is_there_with_its_reason(report_of: ReportOf, matrix: Matrix) -> None:
    html, markdown = to_html(report_of([])), to_markdown(report_of([]))
    for cell in matrix.cells.values():
        if cell.excluded:
            assert cell.id in html
            assert cell.id in markdown
            assert cell.excluded.rstrip(".") in markdown


def test_a_report_on_nothing_says_so_and_what_to_type(report_of: ReportOf) -> None:
    report = report_of([])
    assert report.answers.use == ("No run that counts names a cell yet.",)
    assert [step.command for step in report.answers.next] == [".venv/bin/matrix run"]
    for text in (to_html(report), to_markdown(report)):
        assert "No run on this kind of host counts yet." in text


def test_the_answer_names_runs_on_other_kinds_of_host(tmp_path: Path, make_record: Make, matrix: Matrix) -> None:
    rows = [Row.of(make_record("r1"))]
    report = build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1e9, "another"))
    assert report.answer.sentence == (
        "No run on this kind of host counts yet; "
        "made on others (this host with another kernel, driver or firmware is one): 1 counted run."
    )


def test_the_answer_has_only_the_criteria_that_runs_on_this_kind_of_host_meet(
    tmp_path: Path, make_record: Make, matrix: Matrix, dual_host: HostFacts
) -> None:
    workload = matrix.workloads["immediate"]
    given = {"workload": "immediate", "workload_hash": workload_hash(workload, DATA), "options": options_of(workload)}
    results, rows = Results(tmp_path), list[Row]()
    for run_id, outcome, kind in (("r1", "completed", "k" * 16), ("r2", "failed", "n" * 16)):
        host = dual_host.model_copy(update={"kind": kind})
        record = make_record(run_id, outcome, device="cuda", gpus=(0,), host=host, **given)
        results.begin(record.intent)
        results.finish(record)
        rows.append(Row.of(record))
    states = []
    for kind in ("k" * 16, "n" * 16):
        sentence = build_report(results, rows, matrix, {}, count_runs(rows), Reader(1e9, kind)).answer.sentence
        states.append(re.findall("`immediate` is ([a-z ]+),", sentence))
    assert states == [["met"], ["not met"]]
    # Nor does a run of an environment that has changed since meet one.
    changed, reader = {(rows[0].cell, rows[0].executor): "another"}, Reader(1e9, "k" * 16)
    assert "immediate" not in build_report(results, rows, matrix, changed, count_runs(rows), reader).answer.sentence


def test_runs_of_before_the_app_changed_are_named_and_repeated(make_record: Make, report_of: ReportOf) -> None:
    record = make_record("r1", options={**make_record().intent.options, "lookback": 60})
    answer = report_of([record], current={("cpu-plain", "process"): "another"}).answer
    assert answer.sentence.startswith("No run on this kind of host counts yet; 1 run is stale: the app,")
    again = ".venv/bin/matrix run cpu-plain --workload quick --executor process"
    assert answer.next.command == f"{again} --data merged.csv"
    assert answer.train_now is None


def test_every_model_and_what_it_took_is_shown(make_record: Make, report_of: ReportOf) -> None:
    plain = make_record()
    assert plain.result is not None
    first = {key: getattr(plain.result, key) for key in Training.model_fields}
    memory = {
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": 2 * 10**9,
        "peak_driver_bytes": None,
        "peak_rss_bytes": 10**9,
        "fragmentation": 0.25,
        "owners": [{"pid": 77, "name": "Xorg", "bytes": 10**8, "source": "kfd"}],
    }
    changes: dict[str, Any] = {
        "model_kind": "attention",
        "steps_done": 3200,
        "batch_size": 64,
        "micro_batch_size": 16,
        "earlier": (Training.model_validate(first),),
        "resumed_at": (17, 40),
        "memory": MemoryPeaks.model_validate(memory),
        "time": {"device": 3.0, "loader": 6.0, "copy": 0.01, "validate": 1.0, "checkpoint": 0.0, "bookkeeping": 0.0},
    }
    record = plain.model_copy(update={"result": plain.result.model_copy(update=changes)})
    run = report_of([record]).details["r1"]
    assert [told.kind for told in run.trainings] == ["mlp", "attention"]
    assert run.trainings[1].text == "2 epochs, 3,200 steps of 64 in parts of 16, resumed at step 17, 40, 1000 samples/s"
    assert run.memory == "1.00 GB resident, 2.00 GB reserved, fragmentation 25 % (held by Xorg 77: 0.10 GB)"
    assert [told.time for told in run.trainings] == ["", "60 % loader, 30 % device, 10 % validate"]
    assert [curve.model for curve in run.loss_curves] == ["mlp", "attention"]
    assert run.loss_curves[1].epoch_ends == (16, 32)


def test_every_cell_has_its_newest_run_in_full_and_the_newest_that_failed(synthetic: Report) -> None:
    for group in synthetic.groups:
        for cell in {one.cell for one in group.places}:
            runs = [run for run in synthetic.runs if (run.group, run.cell) == (group.id, cell)]
            failed = [run for run in runs if run.outcome != "completed"]
            for run in [*runs[:1], *failed[:1]]:
                assert run.run_id in synthetic.details


def test_a_damaged_record_is_passed_over(make_record: Make, matrix: Matrix, tmp_path: Path) -> None:
    folder = Results(tmp_path).run_folder("r1")
    folder.mkdir(parents=True)
    (folder / RunFolder.RECORD).write_text("{", encoding="utf-8")
    rows = [Row.of(make_record("r1"))]
    report = build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1e9))
    assert (len(report.runs), report.details) == (1, {})


def test_dockerfiles_are_those_of_the_cells_that_were_run(synthetic: Report, matrix: Matrix) -> None:
    for kind in KINDS:
        cell = f"{kind.stack}-{kind.preset}"
        for name in matrix.cells[cell].preset.variables:
            assert f"ENV {name}=" in synthetic.dockerfiles[cell]


def test_two_reports_on_the_same_records_are_equal(records: list[Record], report_of: ReportOf) -> None:
    report = report_of(records)
    assert Report.model_validate_json(report.model_dump_json(by_alias=True)) == report


def test_the_json_follows_its_schema(synthetic: Report) -> None:
    schema = json.loads((SCHEMAS / "report.schema.json").read_text(encoding="utf-8"))
    content = json.loads(synthetic.model_dump_json(by_alias=True))
    Draft202012Validator(schema).validate(content)
    del content["answers"]["use"]
    assert not Draft202012Validator(schema).is_valid(content)


@pytest.mark.slow
def test_of_many_runs_few_folders_are_read(matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row.of(record) for record in synthetic_records(matrix, 5000)]
    asked = []
    monkeypatch.setattr(Results, "record", lambda _, run_id: asked.append(run_id))
    report = build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1e9))
    assert len(report.runs) == 5000
    places = sum(len(group.places) for group in report.groups)
    assert len(asked) <= (NEWEST + NEWEST_FAILED) * places + 20
    assert len(asked) == len(set(asked))


def test_what_is_recommended_is_of_this_kind_of_host_and_of_the_matrix(
    make_record: Make, matrix: Matrix, tmp_path: Path
) -> None:
    row = Row.of(make_record("r1"))
    until = ".venv/bin/matrix run cpu-plain --until known-good"

    def answers(rows: list[Row], host_kind: str) -> tuple[str, ...]:
        report = build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1.5e9, host_kind))
        assert report.answers.next[0].command == (".venv/bin/matrix run" if host_kind == "x" else until)
        return report.answers.use

    assert "`cpu-plain`" in answers([row], row.host_kind)[0]
    assert answers([row], "x") == (
        "No run that counts names a cell yet.",
        "Runs on 1 other kind of hosts (GPUs, driver or kernel differ) are in the tables below; they say nothing about "
        "this host.",
    )
    variant = row._replace(run_id="r2", cell="cpu-plain~fresh-allocator", started=row.started + 1)
    assert "fresh-allocator" not in " ".join(answers([row, variant], row.host_kind))


@pytest.mark.parametrize(
    ("expires", "executor", "stands"),
    [(2e9, "process", True), (1e9, "process", False), (2e9, "docker", False)],
)
def test_a_tag_counts_until_its_evidence_expires_or_it_is_suspended(
    make_record: Make,
    make_evidence: Callable[..., KnownGood],
    matrix: Matrix,
    tmp_path: Path,
    expires: float,
    executor: str,
    *,
    stands: bool,
) -> None:
    row = Row.of(make_record("r1"))
    given: dict[str, Any] = {"cell": row.cell, "environment_hash": row.environment_hash, "expires_at": expires}
    given |= {"scope": "cpu", "host_kind": row.host_kind, "promoted_at": row.finished + 1}
    promoted = make_evidence(tag="known-good-cpu", **given)
    # A later run suspends the tag of its image, which a process has none of.
    fault = row._replace(run_id="r2", executor=executor, outcome="host-fault", finished=row.finished + 9)
    rows = [row, fault._replace(started=row.started + 9)]
    report = build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1.5e9), [promoted])
    assert ("`known-good-cpu`" in report.answers.use[0]) is stands


def test_no_cell_has_a_second_run_in_full_before_each_has_one(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row.of(record) for record in synthetic_records(matrix, 10 * len(KINDS))]
    places = {(*key_of(row), row.cell) for row in rows}
    asked: list[str] = []
    # There is also room for the newest run with each of two diagnoses, because the answers name those runs.
    monkeypatch.setattr(build, "IN_FULL", len(places) + 2)
    monkeypatch.setattr(Results, "record", lambda _, run_id: asked.append(run_id))
    build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1e9))
    assert {(*key_of(row), row.cell) for row in rows if row.run_id in asked} == places


def test_a_record_is_read_once_and_a_large_one_is_not_kept(
    make_record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path)
    for run_id in ("r1", "r2"):
        results.begin((made := make_record(run_id)).intent)
        results.finish(made)
    size = results.folder_of("r1").record.stat().st_size
    monkeypatch.setattr(of_host, "MOST_KEPT_BYTES", size)
    asked, one_of = list[str](), Results.record

    def record(self: Results, run_id: str) -> Record | None:
        asked.append(run_id)
        return one_of(self, run_id)

    monkeypatch.setattr(Results, "record", record)
    read = of_host.record_reader(results, AS_MADE)
    assert [one.intent.run_id for run_id in ("r1", "r1", "r2", "r2") if (one := read(run_id))] == [
        "r1",
        "r1",
        "r2",
        "r2",
    ]
    assert asked == ["r1", "r2", "r2"]


@pytest.mark.parametrize(("limit", "shown"), [("LARGEST_DETAILS", 2), ("LARGEST_DETAIL", 0)])
def test_as_many_runs_are_shown_in_full_as_there_is_room_for(
    report_of: Callable[..., Report],
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    shown: int,
) -> None:
    """The details of forty imported runs, of 4 MB as an archive, took 842 MB."""
    monkeypatch.setattr(build, limit, 130_000 if shown else 10_000)
    variables = {"train": {f"NAME_{number}": "x" * 100 for number in range(200)}}
    report = report_of(
        [
            make_record(f"r{number}", cell=f"cpu-{preset}", preset=preset, variables=variables)
            for number, preset in enumerate(["plain", "no-mkldnn", "openmp-8"])
        ]
    )
    assert (len(report.runs), len(report.details)) == (3, shown)


def test_hosts_are_described_as_far_as_there_is_room(
    report_of: Callable[..., Report],
    make_record: Callable[..., Record],
    host: HostFacts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = [host.model_copy(update={"fingerprint": str(number) * 16}) for number in range(5)]
    monkeypatch.setattr(build, "LARGEST_HOSTS", int(2.5 * len(host.model_dump_json())))
    report = report_of([make_record(f"r{n}", host=one, started=1e9 + n) for n, one in enumerate(hosts)])
    assert [one.fingerprint for one in report.hosts] == ["4" * 16, "3" * 16]
    assert "3 hosts seen before the others had no room in this report." in report.cautions


def test_every_run_has_its_command_also_those_that_are_not_shown_in_full(synthetic: Report) -> None:
    short = [run for run in synthetic.runs if run.run_id not in synthetic.details]
    assert short
    for run in synthetic.runs:
        if run.uncounted == "injected fault":
            continue
        assert run.again is not None
        command = synthetic.again[run.again].command
        assert f"run-cell {run.cell} " in command
        group = next(group for group in synthetic.groups if group.id == run.group)
        assert f"--executor {group.executor}" in command


def test_a_group_keeps_its_id_when_others_join(report_of: ReportOf, make_record: Callable[..., Record]) -> None:
    first = make_record("r1")
    alone = report_of([first])
    (group,) = alone.groups
    other = make_record("r2", executor="docker", started=2e9)
    ids = group_ids([Row.of(first), Row.of(other)])
    assert len(set(ids.values())) == 2
    assert ids[key_of(Row.of(first))] == group.id


def test_failures_are_listed_by_diagnosis_with_the_cause_of_the_newest(synthetic: Report) -> None:
    newest, *_ = synthetic.failures
    assert newest.diagnosis == "no-progress"
    assert newest.cause == "a copy between host and GPU does not come to an end"
    runs = {run.run_id: run for run in synthetic.runs}
    assert runs[newest.newest].diagnosis == "no-progress"
    assert newest.runs == sum(run.failed and run.diagnosis == "no-progress" for run in synthetic.runs)
    assert set(newest.cells) == {run.cell for run in synthetic.runs if run.failed and run.diagnosis == "no-progress"}


def test_what_repeats_a_run_is_not_that_of_one_with_another_fault_or_of_another_host(
    make_record: Make, report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "IN_FULL", 0)
    elsewhere = make_record("r2", started=2e9, data={"path": "<data>", "sha256": "a" * 64})
    faulty = make_record("r3", started=3e9, injected_fault="engine-lost")
    report = report_of([make_record("r1"), elsewhere, faulty], imported=["r2"])
    repeated = {run.run_id: run.again is not None for run in report.runs}
    assert repeated == {"r1": True, "r2": False, "r3": False}


@pytest.mark.parametrize(("device", "helps"), [("cpu", "this run was given no GPU"), ("cuda", "set HSA_X=1")])
def test_an_old_explanation_of_a_run_without_a_gpu_names_no_remedy_for_one(
    make_record: Make, report_of: ReportOf, device: str, helps: str
) -> None:
    old = Explanation(
        rule=None, class_="missing-arch", cause="c", remedy="set HSA_X=1", link=None, presets=("no-sdma",), lines=()
    )
    record = make_record("r1", "failed", "crash", "it failed", device=device)
    report = report_of([record.model_copy(update={"explanation": old})])
    shown = report.details["r1"].explanation
    assert shown
    assert shown.remedy.startswith(helps)
    assert bool(shown.presets) == (device == "cuda")
    assert helps[1:] in " ".join(report.answers.failures)


def test_a_speed_that_is_not_finite_is_not_shown(make_record: Make, report_of: ReportOf) -> None:
    record = make_record("r1")
    assert record.result is not None
    throughput = record.result.throughput.model_copy(update={"samples_per_second": float("inf")})
    result = record.result.model_copy(update={"throughput": throughput})
    (run,) = report_of([record.model_copy(update={"result": result})]).runs
    assert run.samples_per_second is None
