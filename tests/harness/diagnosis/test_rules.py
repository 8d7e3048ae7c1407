"""Tests of the rules: mistakes in signatures.yaml are refused with their line, and wordings of signals are known."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.diagnosis.rules import load_signatures, of_signals
from tests.harness.diagnosis.in_memory import explain_log

GOOD = """\
schema: 1
classes:
  crash: {fault: run, what: it was ended by a signal}
signatures:
  - id: one
    text: [some text]
    class: crash
    cause: a cause that is long enough
    remedy: none
"""
CLASSES = {
    "SIGSEGV": (11, "segmentation fault", "crash"),
    "SIGILL": (4, "illegal instruction", "crash"),
    "SIGFPE": (8, "floating point exception", "crash"),
    "SIGABRT": (6, "aborted", "crash"),
    "SIGBUS": (7, "bus error", "shm"),
    "SIGKILL": (9, "killed", "killed"),
    "SIGTERM": (15, "terminated", "interrupted"),
}
WORDINGS = [
    "[launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -{number}",
    "  exitcode  : -{number} (pid: 1320)",
    "train-1 exited with code {code}",
    "(exit code: -{number})",
    'error="exit status {code}"',
    "subprocess returned returncode=-{number}",
    "x.service: Main process exited, code=dumped, status={number}/{short}",
    "   Signal {number} ({name}) received by PID 7",
    "mpirun noticed that process rank 0 exited on signal {number}",
    "Process 7 (python) terminated abnormally with signal {number}/{short}, processing...",
    'Thread 1 "python" received signal {name}',
    "process 1 terminated with signal {name}",
    '"train.sh" terminated by signal {name}',
    "Command '['python']' died with <Signals.{name}: {number}>.",
    "train was killed by {name}",
    'level=ERROR error="signal: {words}"',
]


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that returns the error message about a file of signatures."""

    def told(text: str) -> str:
        file = tmp_path / "signatures.yaml"
        file.write_text(text, encoding="utf-8")
        load_signatures.cache_clear()
        with pytest.raises(UserError) as caught:
            load_signatures(file)
        return str(caught.value).removeprefix(str(file))

    return told


def test_a_good_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD, encoding="utf-8")
    assert load_signatures(file).by_id("one").class_ == "crash"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    remedy: none\n", "    remedy: none\n    colour: red\n", ":10: signatures.0.colour: unknown key"),
        ("text: [some text]", "text: [abc]", ":5: signatures.0: every `text:` should have 4 letters"),
        ("text: [some text]", "regex: ['a.c|b']", "should hold 4 literal letters in a row"),
        ("text: [some text]", "regex: ['some (?P<process>x)']", "a group is called pid or name, not process"),
        ("remedy: none", "remedy: ''", "signatures.0.remedy: "),
        ("    text: [some text]\n", "", "give `text:` or `regex:`"),
        ("class: crash", "class: crush", "the class crush is not listed"),
        ("text: [some text]", "rocm: '>=seven'\n    text: [some text]", ":6: signatures.0.rocm: "),
        ("text: [some text]", "severity: bad\n    text: [some text]", ":6: signatures.0.severity: "),
        ("text: [some text]", "link: http://x\n    text: [some text]", ":6: signatures.0.link: "),
        ("fault: run", "fault: nobody", ":3: classes.crash.fault: "),
        ("remedy: none", "remedy: none\n    cpu: ''", ":10: signatures.0.cpu: "),
        ("remedy: none", "remedy: none\n    cpu: none", "one: leave `cpu:` out: 'none' holds without it"),
        ("signatures:", "signatures: [", ": not valid YAML"),
    ],
)
def test_a_mistake_is_reported_with_its_line(refused: Callable[[str], str], old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in refused(GOOD.replace(old, new))


KERNEL = GOOD.replace("    text:", "    where: kernel\n    text:")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("fault: run", "one: its class crash needs `gpu:`, one of reset, lost, faulted, unharmed"),
        ("fault: host, gpu: reset", "`gpu: reset` needs `fault: host` and `of_an_unhealthy_gpu: true`"),
        ("fault: run, gpu: lost, of_an_unhealthy_gpu: true", "`gpu: lost` needs `fault: host` and"),
    ],
)
def test_a_class_of_the_kernels_log_says_how_the_gpu_is(refused: Callable[[str], str], told: str, said: str) -> None:
    assert said in refused(KERNEL.replace("fault: run", told))


def test_a_state_of_the_gpu_is_one_by_the_kernels_log(refused: Callable[[str], str]) -> None:
    said = refused(GOOD.replace("fault: run", "fault: run, gpu: unharmed"))
    assert "the class crash has `gpu:`, and no rule with `where: kernel`" in said


def test_a_reset_is_one_whatever_else_a_rule_says(refused: Callable[[str], str]) -> None:
    reset = KERNEL.replace("fault: run", "fault: host, of_an_unhealthy_gpu: true, gpu: reset")
    assert "one: resets are reported by the kernel alone" in refused(reset.replace("where: kernel", "where: log"))
    for condition in ("severity: ending", "recovered_by: the end", "rocm: '>=7'"):
        said = refused(reset.replace("    text:", f"    {condition}\n    text:"))
        assert f"one: a reset is one by its line alone; leave `{condition.partition(':')[0]}:` out" in said


def test_two_of_one_name_are_refused(refused: Callable[[str], str]) -> None:
    assert "one: appears twice" in refused(GOOD + GOOD[GOOD.index("  - id") :])


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_signatures(tmp_path / "none.yaml")


def test_versions_hold_only_where_they_are_known() -> None:
    one = load_signatures().by_id("illegal-access-since-7.0")
    assert [one.holds_for(rocm, None) for rocm in ("7.0", "7.1.1", "6.4", None, "odd")] == [True, True, *[False] * 3]


@pytest.mark.parametrize("wording", WORDINGS)
def test_a_wording_is_known_for_every_signal_and_no_other(wording: str) -> None:
    for name, (number, words, expected) in CLASSES.items():
        line = wording.format(number=number, code=128 + number, name=name, short=name.removeprefix("SIG"), words=words)
        assert explain_log([line], "x").class_ == expected, line
    line = wording.format(number=1, code=129, name="SIGHUP", short="HUP", words="hangup")
    patterns = of_signals(tuple(CLASSES))
    assert not any(re.search(pattern, line) for pattern in patterns)


def test_only_signals_whose_words_are_known_may_be_given() -> None:
    with pytest.raises(ValueError, match="not SIGPWR"):
        of_signals(("SIGPWR",))


def test_an_expression_takes_time_in_proportion_to_a_line() -> None:
    """A program may print thousands of lines that each take Python's own engine for expressions half a minute."""
    rules = load_signatures().signatures
    assert [one.id for one in rules if None in (*one.patterns, *one._of_kinds)] == []
    assert [one.id for one in rules if one.unless and one._unless is None] == []


def test_what_a_class_says_of_runs_without_a_gpu_holds_for_its_rules(refused: Callable[[str], str]) -> None:
    of_class = GOOD.replace("fault: run", "fault: run, cpu: wait for it")
    assert "leave `cpu:` out: 'wait for it' holds" in refused(of_class.replace("none", "none\n    cpu: wait for it"))
