"""The console script: what is typed wrongly, and Ctrl-C while it loads."""

import re
import signal
import subprocess
import sys

import click
import pytest

from harness import __main__ as entry
from harness.base.paths import CHECKOUT
from harness.cli import main

# Presses Ctrl-C when a module is about to be imported.
PRESSED_AT = """\
import os, signal, sys
from harness.__main__ import main
at = sys.argv.pop(1)
class Press:
    def find_spec(self, name, path, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
main()
"""


def matrix(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(CHECKOUT / ".venv" / "bin" / "matrix"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)


@pytest.mark.parametrize(
    "module", ["harness.cli.main", "click", "pydantic", "docker", "rich.live", "harness.cli.inject"]
)
def test_ctrl_c_while_it_loads_is_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", PRESSED_AT, module, "drill", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == ""
    assert done.stdout == ""


def test_ctrl_c_where_nothing_is_running_yet_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise click.Abort from KeyboardInterrupt()

    monkeypatch.setattr(main, "cli", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == 130


def test_what_was_set_for_ctrl_c_is_set_again_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(main, "main", lambda: seen.append(signal.getsignal(signal.SIGINT)))
    before = signal.getsignal(signal.SIGINT)
    entry.main()
    assert seen == [before]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "--selektion", "default"], "No such option '--selektion'"),
        (["run", "--repeats", "none"], "'none' is not a valid integer"),
        (["statsu"], "No such command 'statsu'"),
        (["explain", "--log"], "'--log' requires an argument"),
        (["run-cell"], "Missing argument 'CELL'"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(words: list[str], told: str) -> None:
    done = matrix(*words)
    [line] = done.stderr.splitlines()
    assert line.startswith("matrix: ")
    assert told in line
    assert re.search(r"; see `matrix( \w+(-\w+)*)? --help`$", line)
    assert (done.returncode, done.stdout) == (2, "")


def test_an_option_of_all_commands_is_told_where_it_goes() -> None:
    done = matrix("status", "--results", "elsewhere")
    assert done.stderr == "matrix: --results goes before the command: `matrix --results ... status`\n"
    assert done.returncode == 2


def test_help_is_printed_and_is_no_mistake() -> None:
    done = matrix("watch", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No file of the results is" in " ".join(done.stdout.split())
    assert matrix().stderr.startswith("Usage: matrix")
