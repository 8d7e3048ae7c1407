"""The kit of benchmarks/gpu_evidence cannot import the harness: it repeats the numbers by which runs are judged."""

from benchmarks.gpu_evidence import tolerances
from harness.evidence import outcome


def test_the_kit_judges_by_the_tolerances_of_runs() -> None:
    assert tolerances.RELATIVE == outcome.TOLERANCE
    assert tolerances.GROWTH == outcome.GROWTH
    assert tolerances.COMPARED_STEPS == outcome.COMPARED_STEPS
    assert tolerances.tolerance_of("attention", "float16", 3) == outcome.tolerance_of("attention", "float16", 3)
