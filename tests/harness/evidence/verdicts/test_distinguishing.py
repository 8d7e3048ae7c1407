import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.evidence.files.run_files import Intent, Record
from harness.evidence.row import Row
from harness.evidence.verdicts.distinguishing import ambiguous_groups, what_differs
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.host.facts import HostFacts
from harness.matrix.cells import Verdicts

Differences = Callable[..., list[str]]
EARLIER = {"environment": {"lock": "a", "app": "1"}, "environment_hash": "0" * 64}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def differences(make_record: Callable[..., Record]) -> Differences:
    """Return a function that returns what tells the verdicts on runs apart; a run is given as changes to its intent."""

    def differences_of(*runs: dict[str, Any]) -> list[str]:
        records = [
            make_record(f"r{number}", started=1e9 + number, **{"environment": {"lock": "a", "app": "2"}, **run})
            for number, run in enumerate(runs)
        ]
        # Each run gets a family of its own, so that it gets a verdict of its own whatever it differs in.
        rows = [Row.of(record)._replace(family=f"f{number}") for number, record in enumerate(records)]
        rows = [row._replace(finished=row.started) for row in rows]
        verdicts = sorted(judge(rows, {}, Verdicts()), key=lambda one: one.last)
        (together,) = ambiguous_groups(verdicts)
        by_run = what_differs(together, {record.intent.run_id: record.intent for record in records})
        return [by_run[one.last] for one in together]

    return differences_of


def test_options_are_named_as_they_are_typed_and_only_those_that_differ(
    differences: Differences, make_intent: Callable[..., Intent]
) -> None:
    options = make_intent("r").options
    mixed = {"lookback": 30, "use_mixed_precision": True}
    plain = {"lookback": 60, "use_mixed_precision": False}
    assert differences(
        {"options": {**options, **plain, "epochs": 1}}, {"options": {**options, **mixed, "epochs": 2}}
    ) == [
        "without --use-mixed-precision, --lookback 60",
        "--use-mixed-precision, --lookback 30",
    ]


def test_many_differences_are_counted(differences: Differences) -> None:
    one, other = (dict.fromkeys(("seed", "threads", "lookback", "batch_size"), value) for value in (1, 2))
    assert differences({"options": one}, {"options": other})[0] == "--seed 1, --threads 1, --lookback 1 and 1 more"


def test_what_an_earlier_environment_had_otherwise_is_named(differences: Differences) -> None:
    assert differences(EARLIER, {}) == ["with an earlier app", "last run 2001-09-09 01:46:41"]


def test_another_kernel_is_named(differences: Differences, host: HostFacts) -> None:
    older = host.model_copy(update={"kernel": "5.10"})
    assert differences({"host": older}, {"host": host}) == ["kernel 5.10", f"kernel {host.kernel}"]


def test_a_program_is_known_by_its_command_and_options_else_by_the_time(differences: Differences) -> None:
    def of(command: str, version: str, **more: Any) -> dict[str, Any]:
        taken = {"folder": "/y", "version": version}
        program = {"command": command, "source": "/x", "taken": taken, **more}
        return {"program": program, "options": {"program": {"command": command.split(), "version": version}}}

    assert differences(of("python a.py", "1"), of("python b.py", "1")) == ["python a.py", "python b.py"]
    writes = of("python a.py", "1", produces=[{"file": "x.pt"}], environment={"A": "1"})
    assert differences(of("python a.py", "1"), writes) == ["without --produces", "A=1, --produces x.pt"]
    earlier, newest = differences(
        {**writes, "environment_hash": "e", "environment": {"lock": "old", "app": "2"}}, writes
    )
    assert (earlier, newest[:20]) == ("with an earlier packages", "last run 2001-09-09 ")
    earlier, newest = differences(of("python a.py", "1"), of("python a.py", "2"))
    assert (earlier, newest[:20]) == ("with earlier files of the program", "last run 2001-09-09 ")


def test_what_the_other_columns_tell_apart_needs_no_words(make_record: Callable[..., Record]) -> None:
    rows = [
        Row.of(make_record("r1")),
        Row.of(make_record("r2", executor="docker")),
        Row.of(make_record("r3", workload="soak", options={"lookback": 3})),
        Row.of(make_record("r4", cell="cpu-no-sdma")),
    ]
    assert ambiguous_groups(judge(rows, {}, Verdicts())) == []


def test_a_record_that_cannot_be_read_costs_only_its_words(make_record: Callable[..., Record]) -> None:
    rows = [Row.of(make_record(f"r{number}"))._replace(family=f"f{number}") for number in range(2)]
    verdicts: list[Verdict] = judge(rows, {}, Verdicts())
    words = what_differs(verdicts, {})
    assert json.dumps(sorted(words)) == '["r0", "r1"]'
    assert all(one.startswith("last run ") for one in words.values())
