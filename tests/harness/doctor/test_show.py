from rich.text import Text

from harness.cli.doctor import finding_lines
from harness.doctor import Finding

FINDINGS = (
    Finding("ok", "all well", check="glibc"),
    Finding("note", "good to know", "because", check="ptrace"),
    Finding("problem", "broken [here]", "nothing runs", "sudo fix [all]", check="kfd"),
    Finding("ok", "one is well", check="rebar"),
    Finding("warning", "the other is not", "slow", "switch it on", check="rebar"),
)


def shown(*, everything: bool) -> list[str]:
    return [Text.from_markup(line).plain for line in finding_lines(FINDINGS, everything=everything)]


def test_the_worst_first_and_what_is_fine_in_one_line() -> None:
    assert shown(everything=False) == [
        "problem kfd: broken [here]",
        "        why: nothing runs",
        "        fix: sudo fix [all]",
        "warning rebar: the other is not",
        "        why: slow",
        "        fix: switch it on",
        "note    ptrace: good to know",
        "        why: because",
        "1 check is fine; --all shows them",
    ]


def test_everything() -> None:
    assert shown(everything=True)[-2:] == ["ok      glibc: all well", "ok      rebar: one is well"]
