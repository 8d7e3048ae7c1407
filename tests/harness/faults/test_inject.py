"""What is skipped. Faults are injected in tests/system and tests/images."""

from harness.faults.external import ExternalFault
from harness.faults.inject import why_skipped
from harness.faults.kinds import Expected, FaultKind

EXPECTED = Expected("failed", "crash")


def test_a_kind_of_the_other_executor_is_skipped_and_so_is_what_is_not_permitted() -> None:
    class Refused(ExternalFault):
        def why_not(self) -> str | None:
            return "only root can do this"

    assert why_skipped(FaultKind("a", "w", EXPECTED, executors=("docker",)), "process") == "only in containers"
    assert why_skipped(FaultKind("a", "w", EXPECTED, executors=("process",)), "docker") == "only as a process"
    assert why_skipped(FaultKind("a", "w", EXPECTED, external=Refused()), "docker") == "only root can do this"
    assert why_skipped(FaultKind("a", "w", EXPECTED), "process") is None
