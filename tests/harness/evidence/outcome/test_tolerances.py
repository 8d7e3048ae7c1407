"""Tests that the kit of benchmarks/gpu_evidence, which cannot import the harness, repeats its tolerances."""

from benchmarks.gpu_evidence import tolerances
from harness.evidence.outcome import tolerances as of_runs


def test_the_kit_judges_by_the_tolerances_of_runs() -> None:
    assert tolerances.RELATIVE == of_runs.TOLERANCE
    assert tolerances.GROWTH == of_runs.GROWTH
    assert tolerances.COMPARED_STEPS == of_runs.COMPARED_STEPS
    assert tolerances.tolerance_of("attention", "float16", 3) == of_runs.tolerance_of("attention", "float16", 3)


def test_a_tolerance_above_one_finds_what_is_wrong_by_far_in_both_directions() -> None:
    tolerance = of_runs.tolerance_of("attention", "bfloat16", 5)
    assert 1 < tolerance < 5
    assert of_runs.norms_agree(1.0, 4.0, tolerance)
    assert not of_runs.norms_agree(1.0, 1e19, tolerance)
    assert not of_runs.norms_agree(1e19, 1.0, tolerance)
    assert not of_runs.norms_agree(1.0, None, tolerance)
