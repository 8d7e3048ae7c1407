import pytest
from rich.text import Text

from harness.cli import shared
from harness.cli.doctor import finding_lines
from harness.doctor.finding import Finding

FINDINGS = (
    Finding("ok", "all well", check="glibc"),
    Finding("note", "good to know", "because", check="ptrace"),
    Finding("problem", "broken [here]", "nothing runs", "sudo .venv/bin/matrix doctor [all]", check="kfd"),
    Finding("ok", "one is well", check="rebar"),
    Finding("warning", "the other is not", "slow", ".venv/bin/matrix clean  # asks", check="rebar"),
)


def shown(*, everything: bool) -> list[str]:
    return [Text.from_markup(line).plain for line in finding_lines(FINDINGS, everything=everything)]


def test_the_worst_first_and_what_is_fine_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # An activated environment has `matrix` on its PATH, but root's shell does not.
    monkeypatch.setattr(shared, "_program", lambda: "matrix")
    assert shown(everything=False) == [
        "problem kfd: broken [here]",
        "        why: nothing runs",
        "        fix: sudo .venv/bin/matrix doctor [all]",
        "warning rebar: the other is not",
        "        why: slow",
        "        fix: matrix clean  # asks",
        "note    ptrace: good to know",
        "        why: because",
        "1 check is fine; --all shows them",
    ]


def test_everything() -> None:
    assert shown(everything=True)[-2:] == ["ok      glibc: all well", "ok      rebar: one is well"]
