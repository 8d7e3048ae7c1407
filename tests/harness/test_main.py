"""Tests of the console script: mistyped commands, and Ctrl-C while the script loads."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from harness import __main__ as entry
from harness.base.paths import CHECKOUT
from harness.cli import main
from harness.cli.commands import COMMANDS, HIDDEN, SECTIONS, help_line
from harness.cli.shared import ask_user
from tests.harness.run_matrix import run_matrix

# A program that presses Ctrl-C when the module named by its first argument is about to be imported.
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


def test_no_file_can_be_written_by_every_user_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        run_matrix("--version")
    finally:
        left = os.umask(before)
    assert left == 0o002


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["harness.cli.main", "click", "pydantic", "docker", "rich.live", "harness.cli.inject"]
)
def test_ctrl_c_while_it_loads_is_no_traceback(module: str) -> None:
    command = [sys.executable, "-c", PRESSED_AT, module, "inject", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == ""
    assert done.stdout == ""


def test_ctrl_c_where_nothing_is_running_yet_is_answered_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise click.Abort from KeyboardInterrupt()

    monkeypatch.setattr(main, "cli", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted; the same command starts it again.\n"


@pytest.mark.parametrize("option", ["--yes", "--use-screen-gpu"])
def test_a_question_that_nobody_can_answer_names_the_option_that_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(main, "cli", lambda **_: ask_user("Remove 1 of 1?", option))
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == 1
    said = f"\nmatrix: there was no answer, so nothing was done; {option} answers in advance\n"
    assert capsys.readouterr().err.endswith(said)


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
        (["report", "--open"], "No such option '--open'; see"),
        (["plan", "--repeat", "3"], "No such option '--repeat' (did you mean --repeats?); see"),
        (["run", "--repeats", "none"], "'none' is not a whole number"),
        (["inject", "--repeats", "9" * 400], "is not in the range 1<=x<=10000"),
        (["run", "--hours", "3"], "No such option '--hours' (did you mean --budget?); see"),
        (["run", "--cells", "3"], "'--cells'; arguments go without one, as in `.venv/bin/matrix run cpu-plain`; see"),
        (["run", "--dry-run"], "No such option '--dry-run'; `.venv/bin/matrix plan` prints what it would do; see"),
        (["train", "--checkpoint-every", "5"], "`.venv/bin/matrix exec best vpoc train` has more of them; see"),
        (["predict"], "(it is the app's: `.venv/bin/matrix exec cpu-plain vpoc predict`)"),
        (["statsu"], "No such command 'statsu' (did you mean `.venv/bin/matrix status`?)"),
        (["run_cel"], "No such command 'run_cel' (did you mean `.venv/bin/matrix run-cell`?)"),
        (["xyzzy"], "No such command 'xyzzy'; see"),
        (["explain", "--log"], "'--log' requires an argument"),
        (["host-changed"], "as in `.venv/bin/matrix host-changed 'new PSU'`"),
        (["run-cell"], "run-cell: CELL is missing, as in `.venv/bin/matrix run-cell cpu-plain`"),
        (["demote"], "as in `.venv/bin/matrix demote known-good-cpu --reason 'hangs on kernel 6.14'`"),
        (["train"], "as in `.venv/bin/matrix train --output TRAINING --data merged.csv`"),
        (["isolate"], "isolate: CELL is missing, as in `.venv/bin/matrix isolate rocm6.3-torch2.9.1-plain`"),
        (["minimise"], "as in `.venv/bin/matrix minimise cpu-no-sdma`"),
        (["exec", "cpu-plain"], "COMMAND... is missing, as in `.venv/bin/matrix exec cpu-plain vpoc --help`"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(words: list[str], told: str) -> None:
    done = run_matrix(*words)
    [line] = done.stderr.splitlines()
    assert line.startswith("matrix: ")
    assert told in line
    assert re.search(r"(; see `.venv/bin/matrix( \w+(-\w+)*)? --help|, as in `.venv/bin/matrix .*)`$", line)
    assert (done.returncode, done.stdout) == (2, "")


def test_an_option_of_all_commands_says_where_it_goes() -> None:
    done = run_matrix("status", "--results", "elsewhere")
    assert done.stderr == "matrix: --results goes before the command: `.venv/bin/matrix --results ... status`\n"
    assert done.returncode == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_sentence_of_its_help(name: str) -> None:
    command = main.cli.get_command(click.Context(main.cli), name)
    assert command is not None
    assert help_line(name) == command.get_short_help_str(1000)
    assert command.hidden == (name == HIDDEN)
    assert "\\b" not in (command.help or ""), "the character that keeps lines apart, and not a backslash"


def test_the_list_of_commands_imports_none_of_them() -> None:
    """`matrix --help` must be fast, so listing the commands must not import all of them."""
    heavy = ("pydantic", "yaml", "docker", "numpy", "scipy", "harness.matrix.cells")
    code = (
        "import sys, harness.cli.main\n"
        "try: harness.cli.main.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([n for n in sys.modules if n in {heavy} or n[:12] == 'harness.cli.'\n"
        "         and n[12:] not in ('by_make', 'commands', 'main', 'shared', 'usage')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    *shown, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    begins = re.compile(r"  (\S+)  +\S")
    listed = [found[1] for line in shown[shown.index(f"{next(iter(SECTIONS))}:") :] if (found := begins.match(line))]
    assert listed == [name for name in COMMANDS if name != HIDDEN]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("status", ("psutil", "harness.report.model", "harness.diagnosis.rules", "harness.matrix.lint")),
        ("explain", ("psutil", "harness.evidence.index", "harness.training.state")),
    ],
)
def test_what_is_typed_often_waits_for_nothing_that_it_does_not_use(
    command: str, unused: tuple[str, ...], tmp_path: Path
) -> None:
    heavy = ("scipy", "numpy", "docker", "plotly", "requests", "harness.campaign.bench.bench", *unused)
    place = COMMANDS[command].split(":")[0]
    code = (
        f"import sys, harness.cli.main, harness.cli.{place}\n"
        f"try: harness.cli.main.main(['--results', {str(tmp_path)!r}, {command!r}])\n"
        f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.splitlines()[-1] == "[]"


def test_the_shell_completes_commands_and_their_options() -> None:
    def completed(words: list[str], incomplete: str) -> list[str]:
        return [item.value for item in ShellComplete(main.cli, {}, "matrix", "_X").get_completions(words, incomplete)]

    assert completed([], "ru") == ["run", "run-cell"]
    assert completed([], "--res") == ["--results"]
    assert completed(["status"], "--var") == ["--variants"]
    assert completed(["sttus"], "--var") == []


def test_help_is_printed_and_is_no_mistake() -> None:
    done = run_matrix("watch", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No file of the results is" in " ".join(done.stdout.split())
    assert run_matrix().stderr.startswith("Usage: matrix")
