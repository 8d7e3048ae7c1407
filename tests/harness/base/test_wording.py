"""Tests of how numbers and names are put into sentences."""

from harness.base.wording import listed, many, percent, size_in_words, some_of


def test_a_number_has_its_noun() -> None:
    assert [many(count, "run") for count in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]


def test_names_are_a_list_in_a_sentence() -> None:
    assert [listed("abc"[:count]) for count in (0, 1, 2, 3)] == ["", "a", "a and b", "a, b and c"]
    assert [some_of("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]


def test_a_share_and_a_size_have_one_form_each() -> None:
    assert [percent(share) for share in (0.0, 0.334, 1.0)] == ["0 %", "33 %", "100 %"]
    sizes = (2.6e12, 50e9, 2.62e6, 147_000, 0)
    assert [size_in_words(size) for size in sizes] == ["2600 GB", "50 GB", "2.6 MB", "147 kB", "0 kB"]
