"""Tests of how bounds are put into sentences."""

from harness.report.words import at_least, at_most


def test_bounds_are_rounded_to_the_weaker_claim_and_by_no_error_of_a_float() -> None:
    assert [at_least(bound) for bound in (0.0, 0.29, 0.895)] == ["0 %", "29 %", "89 %"]
    assert [at_most(bound) for bound in (0.0, 0.07, 0.334)] == ["0 %", "7 %", "34 %"]
