from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contracts import Intent, Record
from harness.errors import UserError
from harness.index import Index, Row
from harness.records import RECORD, Results, new_run_id

MakeRecord = Callable[..., Record]


def keep(results: Results, record: Record) -> None:
    results.begin(record.intent)
    results.finish(record)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record()
    keep(results, record)
    assert results.record("r1") == record
    assert list(results.records()) == [record]


def test_an_attempt_is_never_overwritten(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record()
    keep(results, record)
    with pytest.raises(UserError, match="never overwritten"):
        results.begin(record.intent)


def test_an_intent_without_a_record_is_unfinished(tmp_path: Path, make_intent: Callable[..., Intent]) -> None:
    results = Results(tmp_path)
    results.begin(make_intent("r1"))
    assert [intent.run_id for intent in results.unfinished()] == ["r1"]
    assert list(results.records()) == []


def test_a_damaged_record_is_named(tmp_path: Path, make_record: MakeRecord) -> None:
    results, record = Results(tmp_path), make_record()
    keep(results, record)
    file = results.run_folder("r1") / RECORD
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError, match="is damaged"):
        list(results.records())


def test_run_ids_are_never_given_twice() -> None:
    assert len({new_run_id("c") for _ in range(100)}) == 100


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
        (results.folder / "records.db").unlink()
        assert Index(results).rows() == before
        assert [row.outcome for row in before] == ["completed"] * 3 + ["failed", "completed"]

    @pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be looked at" * 100])
    def test_a_damaged_one_is_made_anew(self, results: Results, content: bytes) -> None:
        before = Index(results).rows()
        (results.folder / "records.db").write_bytes(content)
        if content:
            assert Index(results).rows() == before
        assert Index(results).rebuild() == 5
        assert Index(results).rows() == before

    def test_rebuilding_drops_what_has_no_folder(self, results: Results, make_record: MakeRecord) -> None:
        Index(results).add(make_record("ghost"))
        assert len(Index(results).rows()) == 6
        Index(results).rebuild()
        assert len(Index(results).rows()) == 5

    def test_adding_a_record_twice_keeps_one(self, results: Results) -> None:
        record = results.record("r0")
        assert record is not None
        Index(results).add(record)
        assert len(Index(results).rows()) == 5

    def test_a_row_holds_what_the_record_says(self, make_record: MakeRecord) -> None:
        record = make_record("r9", outcome="failed", diagnosis="crash", detail="the train process ended with SIGSEGV")
        row = Row.of(record)
        assert (row.run_id, row.outcome, row.diagnosis) == ("r9", "failed", "crash")
        assert (row.host_kind, row.executor, row.seconds) == (record.intent.host.kind, "process", 5.0)
        assert row.samples_per_second is None

    def test_without_any_run_there_are_no_rows_and_no_file(self, tmp_path: Path) -> None:
        results = Results(tmp_path / "none")
        assert Index(results).rows() == []
        assert not results.folder.exists()
