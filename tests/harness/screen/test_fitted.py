import io
import re

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.screen.fitted import as_question, print_folded, print_table
from harness.screen.log_lines import print_stamped

LONG = "rocm6.2.4-torch2.6.0-experimental-attention"
TEXT = "one word after the other until no line of eighty can hold them all, and then some more"


def table() -> Table:
    made = Table()
    for name in ("cell", "verdict", "hours", "scope", "note", "why"):
        made.add_column(name)
    made.add_row(LONG, Text("known-good", "green"), "[b]h", "gfx1100-ddp-2, docker", "", TEXT)
    return made


def printed(width: int, terminal: bool = True, *, wide: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, no_color=True, highlight=False)
    print_table(console, table(), ("hours", "scope"), "why", wide=wide)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


@pytest.mark.parametrize("width", [84, 90, 100, 120, 200])
def test_names_are_whole_and_no_line_is_too_long(width: int) -> None:
    lines = printed(width).splitlines()
    assert max(map(len, lines)) <= width
    assert LONG in lines[1].split()
    assert " ".join(" ".join(lines).split()).count("known-good") == 1


def test_columns_are_left_out_by_rank_and_that_is_said() -> None:
    assert "(not shown: hours, scope; --wide shows all)" in printed(84)
    assert "(not shown: hours; --wide shows all)" in printed(110)
    assert "not shown" not in printed(120)
    assert "note" not in printed(200)


def test_what_is_piped_or_asked_for_is_whole_in_a_line() -> None:
    for said in (printed(80, terminal=False), printed(80, wide=True)):
        assert len(said.splitlines()) == 2
        # The last heading is not padded with blanks to the width of its column.
        assert said.splitlines()[0].endswith("why")
        for text in (LONG, "[b]h", "gfx1100-ddp-2, docker", TEXT):
            assert text in said


def test_a_name_that_leaves_no_room_has_a_line_of_its_own() -> None:
    heading, headings, name, values, *_ = printed(70).splitlines()
    assert (heading, headings.split()) == ("cell", ["verdict", "hours", "scope", "why"])
    assert name == LONG
    assert values == "  known-good  [b]h   gfx1100-ddp-2, docker  one word after the other"
    heading, headings, names, values, *_ = printed(35).splitlines()
    assert (heading, headings.split()) == ("cell  verdict", ["hours", "why"])
    assert (names, values) == (f"{LONG}  known-good", "  [b]h   one word after the other")


def test_a_name_that_is_wider_than_the_terminal_is_not_cut() -> None:
    assert LONG in printed(20)


def test_a_folded_line_keeps_its_indentation() -> None:
    file = io.StringIO()
    print_folded(Console(file=file, width=40, force_terminal=True), f"    {TEXT} [see below]")
    lines = file.getvalue().splitlines()
    assert len(lines) > 1
    assert all(line.startswith("    ") and len(line) <= 40 for line in lines)
    assert "[see below]" in " ".join(" ".join(lines).split())


def test_a_question_and_a_stamped_line_are_folded_at_words_and_a_command_stays_whole() -> None:
    file, command = io.StringIO(), "`.venv/bin/matrix explain 20261127T161715Z-51b1fa-train-1`"
    console = Console(file=file, width=80, force_terminal=True)
    asked = as_question(console, f"{TEXT}; {TEXT}?")
    assert asked.replace("\n", " ") == f"{TEXT}; {TEXT}?"
    assert max(map(len, asked.splitlines())) <= 80 - len(" [y/N]: ")
    print_stamped(console, f"  oom-gpu; {command} says more, {escape('[1/2]')} and {TEXT}")
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(command in line for line in lines)
    assert "[1/2] and" in " ".join(lines)


def test_what_is_styled_at_the_beginning_stays_so_and_a_path_is_not_broken() -> None:
    file, path = io.StringIO(), "/var/lib/docker/" + "x" * 40
    console = Console(file=file, width=40, force_terminal=True, color_system="standard")
    print_folded(console, Text.from_markup(f"[red]problem[/] {TEXT} {path}"), 8)
    first, *others = file.getvalue().splitlines()
    assert first.startswith("\x1b[31mproblem\x1b[0m")
    assert all(line.startswith(" " * 8) for line in others)
    assert path in others[-1]


def test_a_command_is_not_folded() -> None:
    file = io.StringIO()
    print_folded(Console(file=file, width=40, force_terminal=True), f"    fix: {TEXT}", 8, command="fix: ")
    assert file.getvalue() == f"    fix: {TEXT}\n"


def test_a_name_with_hyphens_stays_whole() -> None:
    file = io.StringIO()
    print_folded(Console(file=file, width=40, force_terminal=True), f"left out: no-sdma, {LONG[:36]}, plain")
    assert LONG[:36] in file.getvalue()
