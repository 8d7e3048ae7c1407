from collections.abc import Callable
from pathlib import Path

from harness.campaign.bench.bench import Bench
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Intent, Record, Scheduled
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.processes.processes import ProcessId
from harness.slurm.closing import why_no_record

ON_N1 = Scheduled(scheduler="slurm", job="1", node="n1")


def bench_of(tmp_path: Path, host: HostFacts) -> Bench:
    return Bench(Results(tmp_path), ProcessExecutor(), host, ())


def test_nothing_is_left_of_a_run_that_has_its_record(
    tmp_path: Path, host: HostFacts, make_record: Callable[..., Record]
) -> None:
    bench = bench_of(tmp_path, host)
    assert why_no_record(bench, "none") is None
    record = make_record("r1", scheduled=ON_N1)
    bench.results.begin(record.intent)
    bench.results.finish(record)
    assert why_no_record(bench, "r1") is None


def test_a_run_of_a_machine_that_was_replaced_has_gone_with_it(
    tmp_path: Path, host: HostFacts, make_intent: Callable[..., Intent]
) -> None:
    other = host.model_copy(update={"machine": "another"})
    bench = bench_of(tmp_path, host)
    bench.results.begin(make_intent("r1", scheduled=ON_N1, host=other))
    assert why_no_record(bench, "r1") is None
    record = bench.results.record("r1")
    assert record
    assert (record.outcome, record.diagnosis) == ("host-fault", "host-down")


def test_a_harness_that_still_runs_is_named(
    tmp_path: Path, host: HostFacts, make_intent: Callable[..., Intent]
) -> None:
    me = ProcessId.mine()
    here = host.model_copy(update={"boot_id": me.boot})
    bench = bench_of(tmp_path, here)
    intent = make_intent("r1", scheduled=ON_N1, host=here, owner_pid=me.pid, owner_started=me.started)
    bench.results.begin(intent)
    assert f"process {me.pid}, still runs here" in (why_no_record(bench, "r1") or "")
    assert not bench.results.has_record("r1")
