"""Tests of two-level designs."""

from collections import Counter
from itertools import combinations

from harness.search.minimise import plackett_burman


def test_every_pair_of_factors_is_set_in_all_four_ways_equally_often() -> None:
    for factors in range(1, 30):
        rows = plackett_burman(factors)
        assert all(2 * sum(row[factor] for row in rows) == len(rows) for factor in range(factors)), factors
        for one, other in combinations(range(factors), 2):
            ways = Counter((row[one], row[other]) for row in rows)
            assert (set(ways.values()), len(ways)) == ({len(rows) // 4}, 4), factors
        assert (True,) * factors in rows


def test_it_is_small() -> None:
    assert {factors: len(plackett_burman(factors)) for factors in (3, 7, 11, 19)} == {3: 4, 7: 8, 11: 12, 19: 20}
