"""Every wording that tells of a signal is known for each of them."""

import pytest

from harness.diagnosis import explain_log
from harness.diagnosis.signal_words import of_signals

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


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("wording", WORDINGS)
def test_a_wording_is_known_for_every_signal(wording: str, name: str) -> None:
    number, words, expected = CLASSES[name]
    line = wording.format(number=number, code=128 + number, name=name, short=name.removeprefix("SIG"), words=words)
    assert explain_log([line], "x").class_ == expected


@pytest.mark.parametrize("wording", WORDINGS)
def test_the_number_of_another_signal_is_none_of_these(wording: str) -> None:
    line = wording.format(number=1, code=129, name="SIGHUP", short="HUP", words="hangup")
    patterns = of_signals(tuple(CLASSES))
    assert not any(pattern.search(line) for pattern in patterns)


def test_only_signals_whose_words_are_known_may_be_given() -> None:
    with pytest.raises(ValueError, match="not SIGPWR"):
        of_signals(("SIGPWR",))
