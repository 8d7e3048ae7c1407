"""Tests of patterns and the texts they need, compared with the regular expressions themselves."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.diagnosis.patterns import any_of, kind_of, kinds_in, needed_text, of_kinds


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("plain text", "plain text"),
        (r"ring [a-z_]+[\d._]* timeout", " timeout"),
        (r"(?:HIP|CU)BLAS_STATUS_\w+ when", "BLAS_STATUS_"),
        (r"a\.b\(c\)", "a.b(c)"),
        (r"abcd?e", "abc"),
        (r"abcd*ef", "abc"),
        (r"abc{0,3}def", "def"),
        (r"abcd+ef", "abcd"),
        (r"[\]x]abcd", "abcd"),
        (r"one|other", ""),
        (r"(one|other) thing", " thing"),
        (r"(a(b|c)d)efgh", "efgh"),
    ],
)
def test_the_text_that_is_needed(pattern: str, needed: str) -> None:
    assert needed_text(pattern) == needed


PARTS = st.one_of(
    st.text(alphabet="abcde ", min_size=1, max_size=4).map(re.escape),
    st.sampled_from(
        [r"\d+", "[abc]", "[^x]*", r"[\]x]", "(?:ab|cd)", ".{0,3}", "(a)?", "b+", "c*", "d?", r"\.", r"\b", "e{2,3}"]
    ),
)


@given(st.data(), st.lists(PARTS, min_size=1, max_size=6).map("".join))
def test_every_match_holds_it(data: st.DataObject, pattern: str) -> None:
    text = data.draw(st.from_regex(pattern, fullmatch=True))
    assert needed_text(pattern) in text


WORDS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=12)


@given(WORDS, st.text(alphabet="abcd", max_size=40))
def test_any_of_many_is_found_where_one_is(words: list[str], text: str) -> None:
    found = re.search(any_of(words), text)
    assert (found is not None) == any(word in text for word in words)
    if found:
        assert found[0] in words


def test_lines_that_differ_in_digits_are_of_one_kind() -> None:
    assert kind_of("step 17 of 90, loss 0.25 é") == "step 00 of 00, loss 0.00 é"
    lines = "step 1 é\rstep 2 é\nstep 33 é\n"
    assert kinds_in(lines) == {kind_of(line).encode() for line in ("step 1 é", "step 33 é", "")}


WITH_DIGITS = st.sampled_from(["exit 7", "0x10[1-9a]f", "(?:137|-9)", "[^1-8]", "[^x5]", r"\x2d", "[2-4]+"])


@given(st.data(), st.lists(st.one_of(PARTS, WITH_DIGITS), min_size=1, max_size=6).map("".join))
def test_a_pattern_of_kinds_finds_the_kind_of_every_match(data: st.DataObject, pattern: str) -> None:
    line = data.draw(st.from_regex(pattern))
    assert re.search(of_kinds(pattern), kind_of(line))


def test_a_pattern_of_kinds_refuses_other_kinds() -> None:
    assert not re.search(of_kinds(r"exit code: 139\b"), kind_of("exit code: 1"))
    assert not re.search(of_kinds("loss (?:nan|inf)"), kind_of("loss 0.5"))
