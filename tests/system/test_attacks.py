"""Tests of attacks by a hostile app on the harness, in processes on a stand-in; the attack bench must see them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.attacks.__main__ import Bench
from benchmarks.attacks.hostile.__main__ import CONTROLS
from benchmarks.attacks.hostile.app import ATTACKS
from benchmarks.attacks.run import Row

FEW = ("link-result", "html-in-result", "forged-record")
REST = [
    one.name for one in ATTACKS.values() if "process" in one.executors and one.group != CONTROLS and one.name not in FEW
]

RunAttack = Callable[[str], Row]


@pytest.fixture(scope="module")
def run_attack(tmp_path_factory: pytest.TempPathFactory) -> RunAttack:
    bench = Bench(tmp_path_factory.mktemp("attacks"), ("process",), None)

    def run(name: str) -> Row:
        (row,) = bench.rows([ATTACKS[name]])
        return row

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.long) for name in REST)])
def test_an_attack_does_no_harm(name: str, run_attack: RunAttack) -> None:
    row = run_attack(name)
    assert row.wrong == (), row


# `test_a_false_result_is_seen` also shows that nothing else is wrong with this run.
@pytest.mark.long
def test_an_honest_run_is_no_attack(run_attack: RunAttack) -> None:
    row = run_attack("harmless")
    assert (row.outcome, row.carried_out, row.wrong) == ("completed", True, ()), row


@pytest.mark.slow
def test_a_write_outside_is_seen(run_attack: RunAttack) -> None:
    row = run_attack("writes-outside")
    assert row.writes == ("canary/ssh-key",)
    assert row.wrong == ("writes outside work/: canary/ssh-key",)


@pytest.mark.slow
def test_an_attack_that_did_not_happen_is_seen(run_attack: RunAttack) -> None:
    assert "the attack was not carried out" in run_attack("fails-early").wrong


@pytest.mark.slow
def test_a_false_result_is_seen(run_attack: RunAttack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "harmless", replace(ATTACKS["harmless"], may_complete=None))
    row = run_attack("harmless")
    assert row.false_completed
    assert row.wrong == ("completed, though it is not true",)
