"""Tests of text that is made safe to show."""

import json

import pytest

from harness.base.text import one_line, printable, safe_text

CLEARS = "\x1b[2J"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a plain line, ä and 時", "a plain line, ä and 時"),
        ("two\nlines", r"two\nlines"),
        ("a\ttab", "a tab"),
        (CLEARS, r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("turned\u202eround", r"turned\u202eround"),
        ("half a \ud800", r"half a \ud800"),
    ],
)
def test_a_line_has_escape_sequences_for_what_cannot_be_printed(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_lines_stay_lines() -> None:
    assert printable(f"one\n\ttwo{CLEARS}\r") == "one\n\ttwo\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"


def test_json_stays_json() -> None:
    text = json.dumps({"\u202e": ["\ud800", "\x9b", "ä"]}, ensure_ascii=False)
    assert json.loads(printable(text)) == {"\N{REPLACEMENT CHARACTER}": ["\N{REPLACEMENT CHARACTER}"] * 2 + ["ä"]}


def test_a_name_is_shown_in_one_line_that_moves_nothing() -> None:
    assert safe_text("a\nb\x1b[2J\udcff") == r"'a\nb\x1b[2J\udcff'"
    assert safe_text("a'; GPU 0 is broken") == '"a\'; GPU 0 is broken"'
    assert safe_text("a'\"; GPU 0 is broken") == r"""'a\'"; GPU 0 is broken'"""
    assert len(safe_text("x" * 1000)) == 80
