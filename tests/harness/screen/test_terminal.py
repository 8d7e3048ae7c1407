import ast
import io
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table

import harness
from harness.screen.terminal import SafeConsole, echo

COMMANDS = "\x1b]0;planted\x07\x1b[2J\x9b31m\u202e"
HARNESS = Path(harness.__file__).parent


def table_of(text: str) -> Table:
    table = Table(text)
    table.add_row(text)
    return table


def test_nothing_that_is_echoed_is_a_command_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    echo(f"{COMMANDS}one\n\ttwo")
    echo(COMMANDS, err=True)
    out, err = capfd.readouterr()
    assert out.endswith("one\n\ttwo\n")
    assert not {*out, *err} & {*COMMANDS} - {*"]0;planted[2J31m"}


@pytest.mark.parametrize("terminal", [True, False])
def test_only_rich_itself_gives_commands_to_the_terminal(*, terminal: bool) -> None:
    stream = io.StringIO()
    console = SafeConsole(
        file=stream, force_terminal=terminal, width=200, color_system="standard" if terminal else None
    )
    console.print(COMMANDS, soft_wrap=True)
    console.print(f"[red]{COMMANDS}[/]", table_of(COMMANDS))
    with Live(table_of(COMMANDS), console=console, transient=True), console.status(COMMANDS):
        console.print(COMMANDS, markup=False)
    told = stream.getvalue()
    assert "planted" in told
    assert "\x9b" not in told
    assert "\u202e" not in told
    assert "\x1b]0;" not in told
    assert "\x1b[2J" not in told
    assert ("\x1b[31m" in told) == terminal


@pytest.mark.slow
def test_there_is_no_other_way_to_the_terminal() -> None:
    """This is about the commands; a program in the environment of a cell prints to the harness."""
    others = [
        f"{file.relative_to(HARNESS)}:{call.lineno}"
        for file in sorted(HARNESS.rglob("*.py"))
        if file.relative_to(HARNESS) not in (Path("screen", "terminal.py"), Path("rehearsal", "stand_in_app.py"))
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("print", "click.echo", "click.secho", "Console")
    ]
    assert others == []
