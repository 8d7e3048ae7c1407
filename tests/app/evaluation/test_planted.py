"""Tests of a few of the seeds that benchmarks/planted_edges.py tries a hundred of."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks.planted_edges import KINDS, verdict


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_the_answers_are_right_where_it_is_known_what_is_in_the_data(name):
    found = [verdict(KINDS[name], seed) for seed in range(2)]
    assert all(KINDS[name].right(one) for one in found), found
