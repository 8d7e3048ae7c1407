"""Tests of exporting records on one host and importing them on another."""

import fcntl
import hashlib
import io
import json
import math
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.base.files.hashes import tree_hash
from harness.base.files.json_lines import LARGEST_LINE
from harness.campaign.recovery import recover
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import append_steps, read_steps, unhealthy_gpus
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.gpus.amdgpu import FIRMWARE
from harness.registry.share import imports
from harness.registry.share.archive import LARGEST_RUN, MARK, MARK_CONTENT, write_archive
from harness.registry.share.exports import export_records
from harness.registry.share.imports import import_records
from harness.registry.share.shared_files import MOST_EVIDENCE_BYTES, content_hash

KeepRun = Callable[..., Record]
MakeStep = Callable[..., HealthStep]


@pytest.fixture
def here(tmp_path: Path) -> Results:
    return Results(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Results:
    return Results(tmp_path / "there")


def contents(results: Results) -> dict[str, str]:
    """Return the hash of what each imported run holds, by id, and what is known of GPUs, by file."""
    found = {}
    for folder in results.runs.iterdir():
        if (folder / RunFolder.IMPORTED).exists():
            files = {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
            del files[RunFolder.IMPORTED]
            found[folder.name] = content_hash(files)
    return found | {file.name: file.read_text(encoding="utf-8") for file in results.folder.glob("health/*.jsonl")}


def claim(results: Results, run_id: str, **values: Any) -> None:
    """Put into a record what the result of its run claims."""
    file = results.run_folder(run_id) / RunFolder.RECORD
    record = json.loads(file.read_bytes())
    file.write_text(json.dumps({**record, "result": {**record["result"], **values}}), encoding="utf-8")


def test_records_of_another_host_come_as_they_are(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    keep_run(here, "r2", "failed", diagnosis="out-of-memory")
    exported = export_records(here, tmp_path / "a.tar.gz", host)
    assert (exported.runs, exported.left_out) == (2, ())
    assert exported.sha256 == hashlib.sha256((tmp_path / "a.tar.gz").read_bytes()).hexdigest()
    imported = import_records(there, tmp_path / "a.tar.gz", other_host)
    assert (len(imported.runs), imported.duplicates, imported.differing) == (2, 0, ())
    rows = Index(there).rows()
    assert [row.outcome for row in rows] == ["completed", "failed"]
    for row in rows:
        assert row.imported
        assert (row.host_kind, row.host_fingerprint) == (host.kind, host.fingerprint)
        assert row.machine not in (host.machine, other_host.machine)
        mark = json.loads((there.run_folder(row.run_id) / RunFolder.IMPORTED).read_text(encoding="utf-8"))
        assert mark["archive_sha256"] == exported.sha256
    assert not any(row.imported for row in Index(here).rows())


def test_the_mark_names_the_content(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    export_records(here, tmp_path / "a.tar.gz", host)
    (run_id,) = import_records(there, tmp_path / "a.tar.gz", other_host).runs
    folder = there.run_folder(run_id)
    mark = json.loads((folder / RunFolder.IMPORTED).read_text(encoding="utf-8"))
    (folder / RunFolder.IMPORTED).unlink()
    assert tree_hash(folder, ["**/*"]) == mark["content_sha256"]


@pytest.mark.parametrize(("mode", "shared"), [(0o2770, 0o060), (0o770, 0)])
def test_what_is_imported_into_a_folder_that_a_group_shares_is_for_all_of_it(
    here: Results,
    there: Results,
    host: HostFacts,
    other_host: HostFacts,
    keep_run: KeepRun,
    tmp_path: Path,
    mode: int,
    shared: int,
) -> None:
    keep_run(here, "r1")
    export_records(here, tmp_path / "a.tar.gz", host)
    there.folder.mkdir()
    there.folder.chmod(mode)
    before = os.umask(0o077)
    try:
        (run_id,) = import_records(there, tmp_path / "a.tar.gz", other_host).runs
    finally:
        os.umask(before)
    made = [there.runs, there.run_folder(run_id), *there.run_folder(run_id).rglob("*")]
    assert {one.stat().st_mode & 0o060 for one in made} == {shared}


def test_a_second_import_and_one_back_home_add_nothing(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    keep_run(there, "r1", host=other_host)
    export_records(here, tmp_path / "a.tar.gz", host)
    import_records(there, tmp_path / "a.tar.gz", other_host)
    again = import_records(there, tmp_path / "a.tar.gz", other_host)
    assert (again.runs, again.duplicates) == ((), 1)
    exported = export_records(there, tmp_path / "b.tar.gz", other_host)
    assert exported.runs == 2
    back = import_records(here, tmp_path / "b.tar.gz", host)
    assert (len(back.runs), back.duplicates) == (1, 1)
    assert len(Index(here).rows()) == 2
    assert (here.run_folder("r1") / "output/model.pt").exists()


def test_an_export_of_imports_is_the_same_file(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, make_step: MakeStep
) -> None:
    keep_run(here, "r1", gpus=(0,))
    append_steps(here, [make_step(good=False, detail="at /home/alice")])
    first, second, third = (here.folder / f"{name}.tar.gz" for name in "abc")
    export_records(here, first, host)
    export_records(here, second, host)
    import_records(there, first, other_host)
    export_records(there, third, other_host)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()


def test_runs_of_other_hosts_are_left_out_unless_their_names_are_given(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    keep_run(here, "r2", host=other_host)
    (here.run_folder("r2") / "log.txt").write_text("on gpubox", encoding="utf-8")
    exported = export_records(here, tmp_path / "a.tar.gz", host)
    assert exported.runs == 1
    assert exported.left_out == ("1 run of other hosts: export them there, or name those hosts with --hide",)
    assert export_records(here, tmp_path / "b.tar.gz", host, hide=("gpubox",)).runs == 2
    third = host.model_copy(update={"machine": "t" * 16})
    import_records(there, tmp_path / "b.tar.gz", third)
    assert min((there.run_folder(row.run_id) / "log.txt").read_text() for row in Index(there).rows()) == "on <host>"


def test_runs_of_a_program_of_the_users_own_stay(
    here: Results, host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    program = {"command": ("python", "x.py"), "source": "/srv/secret", "environment": {"API_TOKEN": "secret"}}
    keep_run(here, "r2", program=program, workload="app-secret", variables={"train": program["environment"]})
    exported = export_records(here, tmp_path / "a.tar.gz", host)
    assert exported.runs == 1
    assert exported.left_out == ("1 run of programs of your own: what they are and set is private",)
    with tarfile.open(exported.file) as archive:
        assert not any(b"secret" in archive.extractfile(one).read() for one in archive if one.isfile())  # type: ignore[union-attr]


def test_nothing_to_export_is_reported(here: Results, host: HostFacts, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished run to export"):
        export_records(here, tmp_path / "a.tar.gz", host)
    assert not (tmp_path / "a.tar.gz").exists()


def test_a_damaged_record_is_left_out_and_told_and_so_is_more_than_an_import_takes(
    here: Results, host: HostFacts, keep_run: KeepRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A byte that is no text takes three once it is text.
    assert 3 * MOST_EVIDENCE_BYTES < LARGEST_RUN
    for run_id in ("r1", "r2", "r3", "r4"):
        keep_run(here, run_id)
    Index(here).rows()
    (here.run_folder("r2") / "record.json").write_text("{", encoding="utf-8")
    monkeypatch.setattr("harness.registry.share.exports.MOST_OF_RUN", 5)
    (here.run_folder("r3") / "probe-gpu0.txt").touch()
    monkeypatch.setattr("harness.registry.share.exports.LARGEST_RUN", 60_000)
    (here.run_folder("r4") / "log.txt").write_bytes(b"\xff" * 20_000)
    exported = export_records(here, tmp_path / "a.tar.gz", host)
    assert exported.runs == 1
    assert sum("r2/record.json: is damaged" in line for line in exported.left_out) == 1
    assert f"{here.runs}/r3: has more than 5 files to export" in exported.left_out
    assert f"{here.runs}/r4: has more than 60,000 bytes to export" in exported.left_out


@pytest.mark.parametrize("speed", [math.nan, math.inf, -1.0, 1e38])
def test_a_run_that_claims_an_impossible_speed_is_taken_with_the_others(
    here: Results,
    there: Results,
    host: HostFacts,
    other_host: HostFacts,
    keep_run: KeepRun,
    tmp_path: Path,
    speed: float,
) -> None:
    """It was exported, and then no import took any run of that file."""
    keep_run(here, "r1")
    claim(here, "r1", throughput={"samples_per_second": speed, "train_seconds": 1.0})
    export_records(here, tmp_path / "a.tar.gz", host)
    assert len(import_records(there, tmp_path / "a.tar.gz", other_host).runs) == 1
    assert [row.samples_per_second for row in Index(there).rows()] == [None]


def test_a_run_that_names_more_than_an_import_takes_is_left_out(
    here: Results, host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    keep_run(here, "r2", beside=("x" * 400,) * 200)
    keep_run(here, "r3", variables={"train": {f"V{number}": "x" * 20 for number in range(10_000)}})
    exported = export_records(here, tmp_path / "a.tar.gz", host)
    assert exported.runs == 1
    told = "it names more than any import takes"
    assert sorted(exported.left_out) == [f"{here.runs}/{run_id}: {told}" for run_id in ("r2", "r3")]


def test_a_run_whose_options_are_too_long_without_their_paths_is_left_out(
    here: Results, host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    keep_run(here, "r2")
    claim(here, "r2", options={"all": "/a " * 20_000})
    exported = export_records(here, tmp_path / "a.tar.gz", host)
    assert exported.runs == 1
    assert "no import takes it without its paths: result.options" in exported.left_out[0]


def test_the_id_of_a_run_that_is_here_with_other_content_is_reported_and_nothing_is_changed(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    export_records(here, tmp_path / "a.tar.gz", host)
    (run_id,) = import_records(there, tmp_path / "a.tar.gz", other_host).runs
    before = contents(there)
    (here.run_folder("r1") / "log.txt").write_text("rewritten", encoding="utf-8")
    export_records(here, tmp_path / "b.tar.gz", host)
    imported = import_records(there, tmp_path / "b.tar.gz", other_host)
    assert (imported.runs, imported.duplicates, imported.differing) == ((), 0, (run_id,))
    assert contents(there) == before


def test_what_was_seen_of_gpus_goes_along_and_makes_none_of_this_host_unhealthy(
    here: Results,
    there: Results,
    host: HostFacts,
    other_host: HostFacts,
    keep_run: KeepRun,
    make_step: MakeStep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_run(here, "r1", gpus=(0,))
    append_steps(here, [make_step(good=False)])
    # The other host has a home folder of its own.
    monkeypatch.setenv("XDG_STATE_HOME", str(there.folder.parent / "state"))
    keep_run(there, "r1", host=other_host)
    export_records(here, here.folder / "a.tar.gz", host)
    import_records(there, here.folder / "a.tar.gz", other_host)
    (step,) = read_steps(there)
    (row,) = (row for row in Index(there).rows() if row.imported)
    assert (step.machine, step.boot_id, step.run_id) == (row.machine, row.boot_id, row.run_id)
    assert unhealthy_gpus(there, other_host) == {}
    assert unhealthy_gpus(there, host) == {}


def test_recovery_leaves_imported_runs_alone(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    export_records(here, tmp_path / "a.tar.gz", host)
    (run_id,) = import_records(there, tmp_path / "a.tar.gz", other_host).runs
    before = contents(there)
    # Even an imported run that lost its record is left alone.
    (there.run_folder(run_id) / "record.json").unlink()
    for machine in (host, other_host):
        assert recover(there, machine, lambda _: None, []) == []
    assert not there.has_record(run_id)
    import_records(there, tmp_path / "a.tar.gz", other_host)
    assert set(contents(there)) == set(before)


def hostile(file: Path, run: Mapping[str, bytes], health: Mapping[str, bytes] | None = None, name: str = "") -> Path:
    name = name or content_hash(run)
    members = [(f"runs/{name}/{part}", content) for part, content in run.items()]
    write_archive(file, [*members, *((f"health/{part}", content) for part, content in (health or {}).items())])
    return file


@pytest.fixture
def exported_files(here: Results, host: HostFacts, keep_run: KeepRun, tmp_path: Path) -> dict[str, bytes]:
    """Return the files of a run as they are in an archive."""
    keep_run(here, "r1")
    export_records(here, tmp_path / "good.tar.gz", host)
    with tarfile.open(tmp_path / "good.tar.gz") as packed:
        members = {
            member.name.split("/", 2)[-1]: packed.extractfile(member) for member in packed if member.name != MARK
        }
        return {name: stream.read() for name, stream in members.items() if stream}


def changed(files: Mapping[str, bytes], change: Callable[[dict[str, object]], None]) -> dict[str, bytes]:
    """Return the files with a changed intent, and with a record that fits that intent."""
    intent = json.loads(files["intent.json"])
    change(intent)
    record = {**json.loads(files["record.json"]), "intent": intent}
    return {**files, "intent.json": json.dumps(intent).encode(), "record.json": json.dumps(record).encode()}


def refused(results: Results, file: Path, host: HostFacts, match: str) -> None:
    with pytest.raises(UserError, match=match):
        import_records(results, file, host)
    assert list(results.runs.iterdir()) == []
    assert not (results.folder / "health").exists()
    assert sorted(f.name for f in results.folder.iterdir() if f.name.endswith("tmp")) == []


def test_content_that_is_not_what_it_is_named_after_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path
) -> None:
    good = content_hash(exported_files)
    files = {**exported_files, "log.txt": b"other"}
    refused(there, hostile(tmp_path / "x.tar.gz", files, name=good), other_host, "does not match the hash")


def test_a_run_that_claims_to_be_of_this_host_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path
) -> None:
    def claim(intent: dict[str, object]) -> None:
        intent["host"] = {**json.loads(exported_files["intent.json"])["host"], "machine": other_host.machine}

    file = hostile(tmp_path / "x.tar.gz", changed(exported_files, claim))
    refused(there, file, other_host, "claims to be a run of a machine that runs cells in this folder")


@pytest.mark.parametrize(
    "odd", [{"devices": [{"host": "a", "inside": "b", "group": [1]}]}, {"data": [1], "work": None}]
)
def test_a_container_that_no_report_can_show_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path, odd: dict[str, Any]
) -> None:
    container = {"image": "i", "user": 1, "group": 1, "work": "/w", "data": [], **odd}
    files = changed(exported_files, lambda intent: intent.update({"container": container}))
    refused(there, hostile(tmp_path / "x.tar.gz", files), other_host, "is not a run")


@pytest.mark.parametrize(
    "values",
    [
        {"started": -1.0},
        {"finished": 9e8},
        {"finished": 4e9, "started": 4e9 - 10},
        {"started": 1.0},
        {"exposure_seconds": 1e8},
        {"exposure_seconds": -1.0},
        {"exposure_seconds": math.nan},
        {"idle_seconds": 1e8},
        {"seconds": -1.0},
        {"longest_stall": {"step": 1e8}},
        {"harness_version": "no version is as long" * 300},
    ],
)
def test_a_run_of_impossible_times_or_names_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path, values: dict[str, Any]
) -> None:
    of_intent = {key: values[key] for key in values.keys() & {"started", "harness_version"}}
    files = changed(exported_files, lambda intent: intent.update(of_intent))
    record = {**json.loads(files["record.json"]), **{key: values[key] for key in values.keys() - of_intent.keys()}}
    files["record.json"] = json.dumps(record).encode()
    refused(there, hostile(tmp_path / "x.tar.gz", files), other_host, "holds impossible values|is not a run")


@pytest.mark.parametrize(
    "excess",
    [
        {"beside": ["x" * 400] * 200},
        {"gpus": list(range(10**6, 10**6 + 10_000))},
        {"variables": {"train": {f"v{number}": "x" * 20 for number in range(10_000)}}},
    ],
)
def test_a_run_that_names_more_than_any_run_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path, excess: dict[str, Any]
) -> None:
    """A hundred such runs made every later command take gigabytes of memory."""
    file = hostile(tmp_path / "x.tar.gz", changed(exported_files, lambda intent: intent.update(excess)))
    refused(there, file, other_host, "holds impossible values|is not a run: intent.json: is larger than")


def test_a_run_of_a_host_with_64_gpus_is_imported(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path
) -> None:
    def with_gpus(intent: dict[str, Any]) -> None:
        gpus = [
            GpuFacts(
                index=index,
                gfx="gfx942",
                name="AMD Instinct MI300X",
                memory_bytes=24 << 30,
                render_node=f"/dev/dri/renderD{128 + index}",
                kfd_id=10_000 + index,
                firmware=dict.fromkeys(FIRMWARE, "0x00000061"),
                vbios="113-M3000100-103",
                address="0000:05:00.0",
            ).model_dump()
            for index in range(64)
        ]
        parameters = {f"amdgpu.parameter_{number}": "-1" for number in range(30)}
        intent.update(device="cuda", gpus=list(range(64)), beside=["x" * 120] * 63)
        intent["host"].update(gpus=gpus, kernel_parameters=parameters)

    file = hostile(tmp_path / "x.tar.gz", changed(exported_files, with_gpus))
    assert len(import_records(there, file, other_host).runs) == len(Index(there).rows()) == 1


@pytest.mark.parametrize("field", ["run_id", "campaign"])
@pytest.mark.parametrize(
    "name", ["night-1", "../../x-shared-01234567", ".x-shared-01234567", "x" * 120 + "-shared-01234567"]
)
def test_a_run_that_claims_an_id_that_may_be_given_here_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path, field: str, name: str
) -> None:
    file = hostile(tmp_path / "x.tar.gz", changed(exported_files, lambda intent: intent.update({field: name})))
    refused(there, file, other_host, "has an id that no export writes")


@pytest.mark.parametrize("name", ["intent.json", "record.json"])
@pytest.mark.parametrize("content", [None, b"{", b'{"schema": 2}', b"\xff"])
def test_a_run_without_its_statements_is_refused(
    there: Results,
    other_host: HostFacts,
    exported_files: dict[str, bytes],
    tmp_path: Path,
    name: str,
    content: bytes | None,
) -> None:
    files = {part: made for part, made in exported_files.items() if part != name}
    files |= {name: content} if content is not None else {}
    refused(there, hostile(tmp_path / "x.tar.gz", files), other_host, "is not a run")


def test_a_record_of_another_intent_is_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path
) -> None:
    other = changed(exported_files, lambda intent: intent.update(cell="cpu-other"))
    file = hostile(tmp_path / "x.tar.gz", {**exported_files, "record.json": other["record.json"]})
    refused(there, file, other_host, "record belongs to another intent")


def test_two_runs_of_one_id_are_refused(
    there: Results, other_host: HostFacts, exported_files: dict[str, bytes], tmp_path: Path
) -> None:
    runs = (exported_files, {**exported_files, "log.txt": b"other"})
    members = [(f"runs/{content_hash(run)}/{part}", content) for run in runs for part, content in run.items()]
    write_archive(tmp_path / "x.tar.gz", members)
    refused(there, tmp_path / "x.tar.gz", other_host, "two runs of one id")


def test_health_of_a_gpu_of_this_host_is_refused(
    there: Results, exported_files: dict[str, bytes], make_step: MakeStep, other_host: HostFacts, tmp_path: Path
) -> None:
    mine = other_host.model_copy(update={"machine": "0123456789abcdef"})
    line = make_step(machine=mine.machine, boot_id=mine.boot_id, good=False).model_dump_json(by_alias=True).encode()
    for machine in (mine.machine, "f" * 16):
        file = hostile(tmp_path / f"{machine}.tar.gz", exported_files, {f"{machine}.jsonl": line})
        refused(there, file, mine, "is of another machine")
    long = make_step(machine="f" * 16, environment="e" * LARGEST_LINE).model_dump_json(by_alias=True).encode()
    for number, damaged in enumerate((b"{", long)):
        file = hostile(tmp_path / f"{number}.tar.gz", exported_files, {f"{'f' * 16}.jsonl": damaged})
        refused(there, file, mine, "is damaged")


@pytest.mark.parametrize("times", [{"at": 1e39}, {"at": -1.0}, {"seconds": 1e39}])
def test_health_of_impossible_times_is_refused(
    times: dict[str, float],
    there: Results,
    exported_files: dict[str, bytes],
    make_step: MakeStep,
    host: HostFacts,
    tmp_path: Path,
) -> None:
    line = make_step(**{"machine": "f" * 16, **times}).model_dump_json(by_alias=True).encode()
    file = hostile(tmp_path / "x.tar.gz", exported_files, {f"{'f' * 16}.jsonl": line})
    refused(there, file, host, "holds impossible times")


def test_a_file_that_is_not_there_makes_nothing(there: Results, host: HostFacts, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        import_records(there, tmp_path / "a.tar.gz", host)
    assert not there.folder.exists()


def test_an_import_that_somebody_keeps_others_from_is_abandoned(
    there: Results, host: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "SHORT_LOCK_SECONDS", 0.0)
    (tmp_path / "a.tar.gz").touch()
    there.folder.mkdir()
    with (there.folder / imports.LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process has locked it"):
            import_records(there, tmp_path / "a.tar.gz", host)


def test_an_import_whose_folder_another_user_replaces_meanwhile_writes_nowhere_else(
    here: Results, there: Results, host: HostFacts, other_host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1", host=host)
    file = tmp_path / "records.tar.gz"
    export_records(here, file, host)
    elsewhere = tmp_path / "of-the-victim"
    elsewhere.mkdir()
    closed = []

    def replaced(unpacked: imports.Unpacked) -> Iterator[tuple[str, str]]:
        for name, content in unpacked:
            (place,) = there.folder.glob(".import.*.tmp")
            closed.append(place.stat().st_mode & 0o077 == 0)
            shutil.copytree(place, elsewhere, dirs_exist_ok=True)
            (elsewhere / "runs" / name / RunFolder.IMPORTED).symlink_to(tmp_path / "overwritten")
            place.rename(tmp_path / "moved")
            place.symlink_to(elsewhere)
            yield name, content

    done = import_records(there, file, other_host, replaced)
    assert closed == [True]
    assert not (tmp_path / "overwritten").exists()
    assert sorted(contents(there)) == sorted(done.runs)
    assert not any((tmp_path / "moved").iterdir())


class Killed(BaseException):
    """Ends an import as kill -9 would, except that the process goes on and releases its locks."""


def test_an_import_that_was_cut_short_is_completed_by_the_next(
    here: Results,
    there: Results,
    host: HostFacts,
    other_host: HostFacts,
    keep_run: KeepRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("r1", "r2", "r3"):
        keep_run(here, name)
    export_records(here, tmp_path / "a.tar.gz", host)
    rename, times = Path.rename, 0

    def killed_at_the_third(place: Path, target: Path) -> Path:
        nonlocal times
        times += place.parent.name == "runs"
        if times == 3:
            raise Killed
        return rename(place, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed_at_the_third)
        with pytest.raises(Killed):
            import_records(there, tmp_path / "a.tar.gz", other_host)
    assert len(list(there.records())) == 2
    imported = import_records(there, tmp_path / "a.tar.gz", other_host)
    assert (len(imported.runs), imported.duplicates) == (1, 2)


RUNS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["completed", "failed", "hung"]), min_size=1)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(RUNS, min_size=2, max_size=3), order=st.permutations(range(6)), data=st.data())
def test_in_whatever_order_records_are_put_together_they_are_the_same(
    runs: list[dict[str, str]],
    order: list[int],
    data: st.DataObject,
    host: HostFacts,
    keep_run: KeepRun,
    make_step: MakeStep,
) -> None:
    """Every host exports, some after importing from others; two more hosts import everything, in different orders."""
    place = Path(tempfile.mkdtemp())
    try:
        hosts = [host.model_copy(update={"machine": str(n) * 16}) for n in range(len(runs))]
        results = [Results(place / str(n)) for n in range(len(runs))]
        for one, machine, made in zip(results, hosts, runs, strict=True):
            for run_id, outcome in made.items():
                keep_run(one, run_id, outcome, host=machine, gpus=(0,))
                append_steps(one, [make_step(machine=machine.machine, run_id=run_id)])
        archives: list[Path] = []
        for n, (one, machine) in enumerate(zip(results, hosts, strict=True)):
            for archive in data.draw(st.lists(st.sampled_from(archives), unique=True)) if archives else []:
                import_records(one, archive, machine)
            archives.append(place / f"{n}.tar.gz")
            export_records(one, archives[-1], machine)
        watcher = host.model_copy(update={"machine": "w" * 16})
        known = []
        for name, sequence in (("straight", archives), ("mixed", [archives[n % len(archives)] for n in order])):
            collected = Results(place / name)
            for archive in [*sequence, *archives]:
                import_records(collected, archive, watcher)
            known.append(contents(collected))
        assert known[0] == known[1]
        assert sum(name.endswith(".jsonl") for name in known[0]) == len(runs)
        assert len(known[0]) == sum(map(len, runs)) + len(runs)
    finally:
        shutil.rmtree(place)


def test_the_mark_is_the_first_thing_in_an_archive(
    here: Results, host: HostFacts, keep_run: KeepRun, tmp_path: Path
) -> None:
    keep_run(here, "r1")
    export_records(here, tmp_path / "a.tar.gz", host)
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "a.tar.gz").read_bytes())) as packed:
        first = packed.next()
        assert first is not None
        stream = packed.extractfile(first)
        assert stream is not None
        assert (first.name, stream.read()) == (MARK, MARK_CONTENT)
