import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.files.run_files import HealthStep, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results, check_run_id
from harness.registry.share.anonymise import shared_step
from harness.registry.share.scrub import Scrubber
from harness.registry.share.shared_files import LARGEST_BYTES, content_hash, imported_files, shared_files
from harness.registry.share.shared_ids import hashed, is_shared_id, shared_id

KeepRun = Callable[..., Record]
SCRUBBER = Scrubber(places={"/home/alice": "<home>"}, words={"alice": "<user>"})


def shared(results: Results, record: Record) -> dict[str, bytes]:
    return shared_files(record, results.folder_of(record.intent.run_id), SCRUBBER)


def test_evidence_goes_along_and_models_and_processes_stay(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    files = shared(results, keep_run(results, "r1"))
    assert sorted(files) == ["failure/container.json", "intent.json", "log.txt", "progress-0.jsonl", "record.json"]


def test_nothing_tells_of_the_user_the_places_or_the_machine(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    record = keep_run(
        results,
        "r1",
        "failed",
        container={"image": "i", "user": 1, "group": 1, "work": "/home/alice/x", "data": ["/srv/es.csv"]},
    )
    everything = b"\n".join(shared(results, record).values()).decode()
    host = record.intent.host
    for telling in ("alice", "es.csv", "/srv", "/tmp", "4711", host.machine, f'"{host.boot_id}"'):
        assert telling not in everything


def test_other_programs_and_networks_stay_untold(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    record = keep_run(results, "r1", "failed")
    failure = results.run_folder("r1") / "failure"
    gpu = "[ 5.0] amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n"
    (failure / "kernel-log.txt").write_text(f"[ 4.0] UFW BLOCK SRC=203.0.113.7 MAC=aa:bb:cc\n{gpu}", encoding="utf-8")
    owners = [{"pid": 1, "name": "python", "of_this_run": True}, {"pid": 2, "name": "game", "of_this_run": False}]
    (failure / "memory-owners.json").write_text(json.dumps(owners), encoding="utf-8")
    files = shared(results, record)
    assert files["failure/kernel-log.txt"].decode() == gpu
    assert [owner["name"] for owner in json.loads(files["failure/memory-owners.json"])] == ["python", None]


def test_what_evidence_is_bound_to_stays(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    record = keep_run(results, "r1")
    files = shared(results, record)
    there = Record.model_validate_json(files["record.json"])
    assert Intent.model_validate_json(files["intent.json"]) == there.intent
    for name in ("fingerprint", "kind", "kernel", "gpus", "cpu"):
        assert getattr(there.intent.host, name) == getattr(record.intent.host, name)
    for name in ("environment_hash", "workload_hash", "executor", "cell", "options", "started", "injected_fault"):
        assert getattr(there.intent, name) == getattr(record.intent, name)
    assert (there.outcome, there.seconds, there.finished) == (record.outcome, record.seconds, record.finished)
    assert there.result is not None
    assert record.result is not None
    assert there.result.first_steps == record.result.first_steps
    assert there.detail == "see <run>/log.txt"
    assert there.intent.commands["train"][-1] == "<run>/output"
    assert json.loads(files["failure/container.json"]) == {"Mounts": [{"Source": "<data>"}]}


def test_the_same_run_has_the_same_content_wherever_its_folder_is(tmp_path: Path, keep_run: KeepRun) -> None:
    here, there = Results(tmp_path / "here"), Results(tmp_path / "there")
    hashes = {content_hash(shared(results, keep_run(results, "r1"))) for results in (here, there)}
    assert len(hashes) == 1
    assert content_hash(shared(here, keep_run(here, "r2"))) not in hashes


def test_what_was_shared_before_goes_on_as_it_is(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    files = shared(results, keep_run(results, "r1"))
    folder = tmp_path / "imported"
    for name, content in {**files, "imported.json": b"{}"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    assert imported_files(RunFolder(folder)) == files


def test_a_link_is_not_followed(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    record = keep_run(results, "r1")
    (results.run_folder("r1") / "reference.txt").symlink_to("/etc/passwd")
    assert "reference.txt" not in shared(results, record)


def test_of_a_log_without_end_both_ends_are_kept(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    record = keep_run(results, "r1")
    log = results.run_folder("r1") / "log.txt"
    with log.open("wb") as stream:
        stream.write(b"first\n" + b"x" * 99 + b"\n")
        stream.seek(LARGEST_BYTES + 1000)
        stream.write(b"\nlast\n")
    cut = shared(results, record)["log.txt"]
    assert len(cut) <= LARGEST_BYTES
    assert cut.startswith(b"first\n")
    assert cut.endswith(b"last\n")
    assert b"bytes left out" in cut


def test_of_many_files_so_many_bytes_are_kept_in_all(
    tmp_path: Path, keep_run: KeepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.registry.share.shared_files.MOST_EVIDENCE_BYTES", 10_000)
    results = Results(tmp_path)
    record = keep_run(results, "r1")
    for rank in range(5):
        (results.run_folder("r1") / f"stacks-{rank}.txt").write_bytes(b"a\n" * 4000)
    told = [content for name, content in shared(results, record).items() if name.startswith("stacks")]
    assert [b"bytes left out" in content for content in told] == [False, True, True, True, True]
    assert sum(map(len, told)) < 11_000


def test_ids_of_two_machines_are_never_the_same_and_always_are_ids() -> None:
    ids = {shared_id(machine, run) for machine in ("a", "b") for run in ("r", "r" * 120)}
    assert len(ids) == 4
    for name in ids:
        check_run_id(name)
        assert is_shared_id(name)
    assert not is_shared_id("20261121T224856Z-6feb08-c-cpu-plain-1")
    assert not is_shared_id("../x-shared-01234567")


def test_a_step_of_health_is_of_the_same_machine_boot_and_run_as_its_record(
    tmp_path: Path, keep_run: KeepRun, make_step: Callable[..., HealthStep]
) -> None:
    results = Results(tmp_path)
    record = Record.model_validate_json(shared(results, keep_run(results, "r1"))["record.json"])
    step = shared_step(make_step(detail="in /home/alice"), SCRUBBER)
    assert (step.machine, step.boot_id) == (record.intent.host.machine, record.intent.host.boot_id)
    assert (step.run_id, step.detail) == (record.intent.run_id, "in <home>")
    assert step.machine == hashed("m" * 16)


def test_files_that_are_called_after_the_data_are_not(tmp_path: Path, keep_run: KeepRun) -> None:
    results = Results(tmp_path)
    record = keep_run(results, "r1", commands={"train": ("python", "--data", "x", "--name", "secret-es")})
    assert record.result is not None
    model = record.result.model.model_copy(update={"file": "secret-es.pt"})
    result = record.result.model_copy(update={"model": model, "metadata_file": "secret-es_metadata.json"})
    results.finish(record := record.model_copy(update={"result": result}))
    assert b"secret" not in b"".join(shared(results, record).values())
    ours = keep_run(results, "r2", commands={"train": ("python", "--data", "x", "--name", "data")})
    files = shared(results, ours)
    assert Intent.model_validate_json(files["intent.json"]).commands == ours.intent.commands
