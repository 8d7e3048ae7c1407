"""Numbers and names in sentences."""

from harness.base.wording import listed, many, some_of


def test_a_number_has_its_noun() -> None:
    assert [many(count, "run") for count in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]


def test_names_are_a_list_in_a_sentence() -> None:
    assert [listed("abc"[:count]) for count in (0, 1, 2, 3)] == ["", "a", "a and b", "a, b and c"]
    assert [some_of("abc", most) for most in (2, 3)] == ["a, b and 1 more", "a, b, c"]
