"""The table of kinds: the app knows what it is told to inject, and what is expected of each makes sense."""

import ast

from harness.base.paths import APP
from harness.faults.external import ExternalFault
from harness.faults.kinds import KINDS
from harness.faults.table import injected_by

BY_NAME = {kind.name: kind for kind in KINDS}
MUST_NOT_ALARM = {"slow", "slow-checkpoint", "torn-progress", "clock-back", "flood-log", "paused"}


def kinds_of_the_app() -> set[str]:
    """The keys of its table, without importing it: it needs torch."""
    source = (APP / "vpoc" / "training" / "faults" / "kinds.py").read_text(encoding="utf-8")
    (table,) = (
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FAULT_KINDS"
    )
    assert isinstance(table, ast.Dict)
    return {key.value for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def test_the_app_knows_what_it_is_told_to_inject_and_nothing_it_can_inject_is_left_out() -> None:
    assert len(BY_NAME) == len(KINDS)
    told = {kind.app.partition("@")[0] for kind in KINDS if kind.app}
    assert told == kinds_of_the_app()


def test_only_what_is_healthy_must_not_alarm() -> None:
    assert {kind.name for kind in KINDS if not kind.expected.is_alarm} == MUST_NOT_ALARM


def test_every_fault_that_is_to_be_found_is_to_be_explained() -> None:
    assert all(bool(kind.expected.classes) == kind.expected.is_alarm for kind in KINDS)


def test_of_every_hang_the_rank_is_to_be_named() -> None:
    assert {k.name for k in KINDS if k.stuck is not None} == {k.name for k in KINDS if k.expected.outcome == "hung"}
    for kind in KINDS:
        if kind.stuck is not None:
            assert kind.app is not None
            assert kind.app.endswith(f"/{kind.stuck}")


def test_a_slow_checkpoint_is_waited_for_by_another_rank_and_followed_by_steps() -> None:
    kind = BY_NAME["slow-checkpoint"]
    assert kind.ranks == 2
    assert kind.app is not None
    assert int(kind.app.partition("@")[2].partition("/")[0]) < 29


def test_what_fills_memory_or_disk_is_only_made_where_that_is_limited() -> None:
    for name in ("eat-memory", "child-eats-memory"):
        assert BY_NAME[name].executors == ("docker",)
        assert type(BY_NAME[name].external) is not ExternalFault
    assert type(BY_NAME["fill-disk"].external) is not ExternalFault


def test_injected_faults_are_no_workload_of_a_tag() -> None:
    assert not any(kind.workload.qualifies_for_promotion for kind in KINDS)


def test_who_injects_a_fault_is_said() -> None:
    assert [injected_by(BY_NAME[name]) for name in ("segv", "import-failure", "eat-memory")] == [
        "the app",
        "the harness",
        "the app and the harness",
    ]
