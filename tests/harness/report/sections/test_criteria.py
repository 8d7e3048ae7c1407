from collections.abc import Callable
from typing import Any

from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import options_of, workload_hash
from harness.report.sections.criteria import states_in_words, which_criteria_are_met
from tests.harness.right_result import DATA

Make = Callable[..., Record]


def immediate_in_words(matrix: Matrix, *records: Record) -> str:
    by_id = {record.intent.run_id: record for record in records}
    rows = [Row.of(record) for record in records]
    sentences = [one.sentence for one in which_criteria_are_met(matrix, rows, count_runs(rows), by_id.get)]
    (immediate,) = [text for text in sentences if text.startswith("`immediate`")]
    return immediate


def immediate(matrix: Matrix, **changes: Any) -> dict[str, Any]:
    workload = matrix.workloads["immediate"].model_copy(update=changes)
    return {"workload": "immediate", "workload_hash": workload_hash(workload, DATA), "options": options_of(workload)}


def test_a_gpu_run_that_completed_meets_it(make_record: Make, matrix: Matrix, dual_host: Any) -> None:
    record = make_record("r1", device="cuda", gpus=(0,), host=dual_host, **immediate(matrix))
    assert immediate_in_words(matrix, record).endswith(
        "met on `gfx1100` by `cpu-plain` in 5 s, run `r1`, on `merged.csv`."
    )


def test_a_run_on_a_cpu_never_does(make_record: Make, matrix: Matrix) -> None:
    sentence = immediate_in_words(matrix, make_record("r1", **immediate(matrix)))
    assert "completed on a CPU only" in sentence
    assert sentence.endswith("not shown on a GPU.")


def test_only_the_sessions_the_data_starts_with_may_differ(make_record: Make, matrix: Matrix) -> None:
    assert "r1" in immediate_in_words(matrix, make_record("r1", **immediate(matrix, lookback=25)))
    assert "not tried as it is defined now" in immediate_in_words(
        matrix, make_record("r1", **immediate(matrix, batch_size=9))
    )


def test_failures_injected_faults_and_nothing_at_all_do_not_meet_it(make_record: Make, matrix: Matrix) -> None:
    failed = make_record("r1", outcome="failed", **immediate(matrix))
    assert "not met; 1 run, none completed" in immediate_in_words(matrix, failed)
    faulty = make_record("r2", injected_fault="x@1", **immediate(matrix))
    assert "not tried" in immediate_in_words(matrix, faulty)
    assert "`matrix run --workload immediate` runs it" in immediate_in_words(matrix)


def test_synthetic_bars_are_called_so(make_record: Make, matrix: Matrix) -> None:
    data = {"path": "/x/synthetic-1014-7-abcdef012345.csv", "sha256": DATA}
    assert "on synthetic bars" in immediate_in_words(matrix, make_record("r1", data=data, **immediate(matrix)))


def test_a_file_of_the_users_own_is_named_though_its_name_begins_as_that_of_synthetic_bars(
    make_record: Make, matrix: Matrix
) -> None:
    data = {"path": "/x/synthetic-acme.csv", "sha256": DATA}
    assert "on `synthetic-acme.csv`" in immediate_in_words(matrix, make_record("r1", data=data, **immediate(matrix)))


def test_a_campaign_in_stages_meets_it_in_the_way_that_was_found_good(
    make_record: Make, matrix: Matrix, dual_host: Any
) -> None:
    on_two = {"device": "cuda", "gpus": (0, 1), "host": dual_host}
    found = immediate(matrix, strategy="averaging", vpoc_path="preallocated")
    found["options"]["devices"] = 2
    assert "met on `gfx1100-averaging-2`" in immediate_in_words(matrix, make_record("r1", **on_two, **found))
    smaller = immediate(matrix, strategy="averaging", model=("mlp",))
    assert "not tried as it is defined now" in immediate_in_words(matrix, make_record("r1", **on_two, **smaller))


def test_production_takes_every_gpu(make_record: Make, matrix: Matrix, dual_host: Any) -> None:
    for strategy, word in (("single", "not tried"), ("averaging", "met on")):
        workload = matrix.workloads["production"].model_copy(update={"strategy": strategy})
        options = {**options_of(workload), "devices": 2}
        record = make_record(
            "r1",
            device="cuda",
            gpus=(0, 1),
            host=dual_host,
            workload="production",
            workload_hash=workload_hash(workload, DATA),
            options=options,
        )
        sentences = which_criteria_are_met(matrix, [Row.of(record)], count_runs([Row.of(record)]), {"r1": record}.get)
        assert word in sentences[-1].sentence


def test_in_short_they_are_reported_once_a_gpu_was_tried(make_record: Make, matrix: Matrix, dual_host: Any) -> None:
    def short(**changes: Any) -> str:
        record = make_record("r1", **changes, **immediate(matrix))
        rows = [Row.of(record)]
        return states_in_words(which_criteria_are_met(matrix, rows, count_runs(rows), {"r1": record}.get))

    on_gpu = {"device": "cuda", "gpus": (0,), "host": dual_host}
    others = "`full` is not tried, `production` is not tried"
    assert short(**on_gpu) == f"of the criteria `immediate` is met, {others}"
    assert short(**on_gpu, outcome="failed") == f"of the criteria `immediate` is not met, {others}"
    assert short(**on_gpu, contract=1) == f"of the criteria `immediate` is not met, {others}"
    assert short() == ""
