"""Two-level designs."""

from collections import Counter
from itertools import combinations

import pytest

from harness.search.minimise import plackett_burman


@pytest.mark.parametrize("factors", range(1, 30))
def test_every_pair_of_factors_is_set_in_all_four_ways_equally_often(factors: int) -> None:
    rows = plackett_burman(factors)
    assert all(2 * sum(row[factor] for row in rows) == len(rows) for factor in range(factors))
    for one, other in combinations(range(factors), 2):
        ways = Counter((row[one], row[other]) for row in rows)
        assert set(ways.values()) == {len(rows) // 4}
        assert len(ways) == 4
    assert (True,) * factors in rows


def test_it_is_small() -> None:
    assert {factors: len(plackett_burman(factors)) for factors in (3, 7, 11, 19)} == {3: 4, 7: 8, 11: 12, 19: 20}
