"""Patterns and the texts they need, compared with the regular expressions themselves."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.diagnosis.patterns import any_of, needed_text, sieve


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
    found = any_of(words).search(text)
    assert (found is not None) == any(word in text for word in words)
    if found:
        assert found[0] in words


@given(WORDS, st.lists(st.text(alphabet="abcd01é\r", max_size=12), max_size=8).map("\n".join))
def test_the_sieve_never_refuses_a_text_that_holds_one(words: list[str], text: str) -> None:
    if any(word in text for word in words):
        assert sieve(words)(text)


def test_the_sieve_refuses_what_holds_none() -> None:
    may_hold = sieve(["HIP error: 7", "Killed"])
    assert not may_hold("step 1, loss 0.5\nstep 2, loss 0.4\rstep 3")
    assert may_hold("step 1\n1 HIP error: 700\n")
