"""Tests of what all commands of the app have in common."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.app.commands.in_process import SMALL, vpoc
from vpoc import __version__, kernel
from vpoc.cli import COMMANDS, cli


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(capsys, command):
    code, out, _ = vpoc(capsys, *command, "--help")
    assert code == 0
    assert "Usage: vpoc" in out


def test_help_imports_neither_torch_nor_polars():
    code = (
        "import sys; from vpoc.cli import run; assert run(['--help']) == 0; assert run(['train', '--help']) == 0; "
        "assert not {'torch', 'polars', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "vpoc", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"vpoc {__version__} (")


@pytest.mark.parametrize(
    ("library", "off", "said"),
    [
        (object(), "", "compiled profile kernel"),
        (None, "", "numpy profiles: no compiled kernel for this platform"),
        (None, "off", "numpy profiles: VPOC_KERNEL=off"),
    ],
)
def test_the_version_says_what_computes_profiles(capsys, monkeypatch, library, off, said):
    monkeypatch.setattr(kernel, "library", lambda: library)
    monkeypatch.setenv("VPOC_KERNEL", off)
    assert vpoc(capsys, "--version") == (0, f"vpoc {__version__} ({said})\n", "")


@pytest.mark.parametrize(
    ("arguments", "old", "new"),
    [
        (["check", "none.csv"], "--warm-up", "--lookback"),
        (["check", "none.csv"], "--warm_up", "--lookback"),
        (["train", "--data", "none.csv", "--output", "x"], "--drill", "--inject-fault"),
        (["probe"], "--rung", "--check"),
    ],
)
def test_options_that_were_renamed_keep_their_old_names_unshown(capsys, arguments, old, new):
    """The old name is an alias, and an error about its value names the new option."""
    code, _, err = vpoc(capsys, *arguments, old, "1")
    assert (code, new in err, f"No such option: {old}" in err) == (2, True, False)
    assert old not in vpoc(capsys, arguments[0], "--help")[1]


def test_usage_errors(capsys, merged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--hidden-layers", "32,x")
    assert code == 2
    assert "such as 32,16" in err
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--name", "a/b")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = vpoc(capsys, "train", "--data", merged, "--output", "x", "--rows", "session", "--target", "up_30")
    assert code == 2
    assert err == "vpoc: --target up_30 is not known for --rows session; choose one of next_up, next_vpoc_touched\n"
    for command in ("train", "features", "verify"):
        code, _, err = vpoc(capsys, command, "--data", merged, "--output", f"x-{command}", "--as-of", "open")
        assert code == 2
        assert err == "vpoc: --as-of open is for --rows session: a bar row is always as of the bar's end\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message", "remedy"),
    [
        (["mrege"], "usage", "No such command 'mrege' (did you mean `vpoc merge`?)", "see `vpoc --help`"),
        (["lunch"], "usage", "No such command 'lunch'", "see `vpoc --help`"),
        (
            ["merge", "--bars", "a", "--bars", "b"],
            "usage",
            "--bars takes one file, 2 are given (joining: docs/data.md)",
            "see",
        ),
        (["train", "--epoch", "1"], "usage", "No such option '--epoch' (did you mean --epochs?)", "vpoc train --help"),
        (["check"], "usage", "Missing argument 'FILE'", "see `vpoc check --help`"),
        (
            ["check", "--data", "x"],
            "usage",
            "No such option '--data' (did you mean --dates?); FILE goes without one",
            "see `vpoc check --help`",
        ),
        (
            ["check", "x", "--lookback", "y"],
            "usage",
            "Invalid value for '--lookback': 'y' is not a whole number",
            "see",
        ),
        (["check", ""], "user-error", "an argument is empty, perhaps from an unset variable", "leave it out"),
        (["check", "x" * 300], "user-error", f"{'x' * 300}: the name is too long", "give a shorter one"),
        (["check", "/dev/zero"], "user-error", "/dev/zero: this is a pipe or a device", "give a file"),
        (["check", "none.csv"], "user-error", "none.csv: no such file or folder", "check the path"),
    ],
)
def test_an_error_is_one_line_and_with_json_also_an_object(capsys, arguments, code, message, remedy):
    line = vpoc(capsys, *arguments)
    assert line[:2] == (2, "")
    assert line[2].startswith(f"vpoc: {message}; ")
    assert line[2].count("\n") == 1
    _, out, err = vpoc(capsys, *arguments, "--json")
    told = json.loads(out)
    assert (told["schema"], told["error"]["code"], told["error"]["message"]) == (2, code, message)
    assert remedy in told["error"]["remedy"]
    assert err == line[2]


def test_completion_after_a_mistyped_command_prints_nothing():
    assert cli.resolve_command(click.Context(cli, resilient_parsing=True), ["mrege", "--data"])[0] is None


def test_what_a_message_quotes_is_no_command_to_a_terminal_and_of_bounded_length(capsys, merged, tmp_path):
    file = tmp_path / "bars.csv"
    head, row, rest = merged.read_text().split("\n", 2)
    cells = row.partition(",")[2]
    for stamp in ("\x1b]0;title\x07\x9b31m\u202e", "9" * 100_000):
        file.write_text(f"{head}\n{stamp},{cells}\n{rest}")
        for command in (
            ["check", file, "--lookback", 20],
            ["features", "--data", file, "--output", tmp_path / "features"],
        ):
            code, out, err = vpoc(capsys, *command)
            assert code
            last = err.splitlines()[-1]
            assert "line 2: ts is" in last
            assert "correct or remove the row" in last
            assert last.isprintable()
            assert len(out) + len(err) < 10_000


@pytest.mark.slow
def test_a_command_ends_at_once_after_what_it_wrote_is_out(merged, tmp_path):
    """All output arrives through a pipe, and the exit status reports a failed write, such as one to a full disk."""
    command = [sys.executable, "-c", "from vpoc.cli import main; main()"]
    done = subprocess.run([*command, "probe", "--list"], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.startswith("import ")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*command, "--version"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode not in {0, 2}
    assert subprocess.run([*command, "check", tmp_path / "none.csv"], capture_output=True, check=False).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [True, False])
def test_what_a_gpu_was_used_by_is_taken_apart(gpu):
    """After a GPU was used, its libraries shut down normally, so that a hang in them is seen."""
    program = f"""
import os, sys, torch
from vpoc.cli import main
class Held:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
held = Held()
torch.cuda.is_initialized = lambda: {gpu}
sys.argv[1:] = ["--help"]
main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ("taken apart" in done.stdout) is gpu


def test_no_command_writes_over_its_input(capsys, merged, tmp_path):
    data = tmp_path / "data.pt"
    data.write_bytes(merged.read_bytes())
    kept = tmp_path / "f.bars.parquet"
    kept.hardlink_to(data)
    for command in (
        ["features", "--data", data, "--lookback", 20, "--output", data],
        ["train", "--data", data, *SMALL, "--output", tmp_path],
        ["features", "--data", kept, "--lookback", 20, "--output", tmp_path / "f.parquet"],
        ["verify", "--data", data, *SMALL, "--output", data],
        ["merge", "--bars", data, "--vix", data, "--output", data],
        ["predict", "--model", data, "--data", merged, "--output", data],
    ):
        code, out, err = vpoc(capsys, *command)
        assert (code, out) == (2, "")
        assert "the same file as the input" in err
        assert err.count("\n") == 1
    assert data.read_bytes() == merged.read_bytes()
