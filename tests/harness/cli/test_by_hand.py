"""Tests of `matrix strike` and `matrix host-changed`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.sysfs import REAL_ROOT
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.host_changes import changed_host, changes_file, changes_of, host_of, note_change
from harness.evidence.gpus.strikes import strike, strikes_of, struck_out
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.fingerprint import machine_of
from harness.registry.tags.known_good import why_not_usable
from harness.registry.tags.promotions import KnownGood
from tests.harness.run_matrix import run_matrix

RUN = "20260101T000000Z-aaaaaa-cpu-plain"


@pytest.fixture
def results(tmp_path: Path, make_record: Callable[..., Record]) -> Results:
    """Return the results of two runs of a cell, one of which completed and one failed."""
    results = Results(tmp_path / "results")
    for run_id, outcome in ((RUN, "failed"), ("r2", "completed")):
        record = make_record(run_id, outcome)
        results.begin(record.intent)
        results.finish(record)
        Index(results).add(record)
    return results


def told(results: Results, *words: str) -> Any:
    done = run_matrix("--results", str(results.folder), *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def verdict(results: Results) -> dict[str, Any]:
    (one,) = told(results, "status")["verdicts"]
    return dict(one)


def test_the_latest_run_that_did_not_complete_is_struck_out_by_that_word(results: Results) -> None:
    assert told(results, "strike", "latest", "--reason", "a power cut")["run"] == RUN
    assert verdict(results)["struck"] == {RUN: "a power cut"}


def test_a_run_that_is_struck_out_counts_no_more_until_that_is_undone(results: Results) -> None:
    assert (verdict(results)["passes"], verdict(results)["runs"]) == (1, 2)
    assert told(results, "strike", RUN, "--reason", "a power  cut")["reason"] == "a power cut"
    assert (verdict(results)["passes"], verdict(results)["runs"]) == (1, 1)
    assert verdict(results)["struck"] == {RUN: "a power cut"}
    shown = run_matrix("--results", str(results.folder), "status")
    assert f"{RUN} was struck out by hand: a power cut" in shown.stderr
    (run, _) = told(results, "status", "cpu-plain")["runs"]
    assert (run["counts_as"], run["why_counted_so"]) == ("not-counted", "struck out by hand: a power cut")
    told(results, "strike", RUN, "--undo", "--reason", "it was none")
    assert (verdict(results)["passes"], verdict(results)["runs"]) == (1, 2)
    # Both decisions stay beside the record, which itself does not change.
    assert [line.decision for line in strikes_of(results.folder_of(RUN))] == ["strike", "undo"]
    record = results.record(RUN)
    assert record is not None
    assert record.outcome == "failed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("strike", "r9", "--reason", "x"), "no such run"),
        (("strike", "../r2", "--reason", "x"), "use letters"),
        (("strike", "r2", "--reason", " "), "--reason is empty; give a text"),
        (("demote", "known-good-cpu", "--reason", " "), "--reason is empty; give a text"),
        (("host-changed", " "), "WHAT is empty; give a text"),
        (("strike", "r2"), "strike: --reason is missing, as in "),
        (("strike", "r2", "--undo", "--reason", "x"), "is not struck out"),
    ],
)
def test_what_cannot_be_struck_out_is_refused(words: tuple[str, ...], said: str, results: Results) -> None:
    done = run_matrix("--results", str(results.folder), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert strikes_of(results.folder_of("r2")) == []


def test_it_is_struck_out_once(results: Results) -> None:
    strike(results.folder_of(RUN), "strike", "a power cut")
    with pytest.raises(UserError, match="struck out already: a power cut"):
        strike(results.folder_of(RUN), "strike", "again")


def test_half_a_line_is_no_decision(results: Results) -> None:
    file = results.run_folder(RUN) / RunFolder.STRIKES
    strike(results.folder_of(RUN), "strike", "a power cut")
    file.write_bytes(file.read_bytes() + b'{"schema": 2, "decision": "un')
    assert struck_out(results.folder_of(RUN)) == "a power cut"
    strike(results.folder_of(RUN), "undo", "none")
    assert struck_out(results.folder_of(RUN)) is None


def test_a_changed_host_is_another_kind_from_then_on(results: Results) -> None:
    before = host_of(results, REAL_ROOT)
    assert told(results, "host-changed", "new PSU")["host_kind"] == host_of(results, REAL_ROOT).kind
    once = host_of(results, REAL_ROOT)
    assert once.kind != before.kind
    assert once.fingerprint != before.fingerprint
    assert (once.changes, once.former_fingerprints) == (("new PSU",), (before.fingerprint,))
    file = changes_file(results, before.machine)
    assert (
        run_matrix("--results", str(results.folder), "host-changed", "fan").stdout.splitlines()[1].endswith(str(file))
    )
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))
    assert host_of(results, REAL_ROOT) == once
    # The same change, noted again, makes another kind of host.
    note_change(results, machine_of(REAL_ROOT), "new PSU")
    assert host_of(results, REAL_ROOT).kind not in (before.kind, once.kind)
    assert host_of(results, REAL_ROOT).machine == before.machine
    assert changes_of(results, "another") == []
    # Anybody who shares the folder may add lines, and the time is quadratic in their number.
    file.write_bytes(file.read_bytes() * 10_000)
    assert len(changes_of(results, before.machine)) < 1000


def test_tags_of_a_host_before_it_was_changed_are_refused(
    results: Results, host: HostFacts, make_evidence: Callable[..., KnownGood]
) -> None:
    evidence = make_evidence()
    assert why_not_usable(evidence, host, 2e9) is None
    change = note_change(results, host.machine, "new PSU")
    changed = changed_host(host, [change])
    assert why_not_usable(evidence, changed, 2e9) == "its runs were on this host before it was changed: new PSU"
    # Tags of other hosts, and of this host since the change, are as valid as before.
    assert why_not_usable(make_evidence(host_fingerprint="another"), changed, 2e9) is None
    assert why_not_usable(make_evidence(host_fingerprint=changed.fingerprint), changed, 2e9) is None
