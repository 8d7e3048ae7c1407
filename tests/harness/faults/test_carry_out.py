"""What is skipped. Whole drills are made in tests/system and tests/images."""

from harness.faults.carry_out import why_skipped
from harness.faults.faults import Fault
from harness.faults.kinds import Drill, Expected

EXPECTED = Expected("failed", "crash")


def test_a_kind_of_the_other_executor_is_skipped_and_so_is_what_is_not_permitted() -> None:
    class Refused(Fault):
        def why_not(self) -> str | None:
            return "only root can do this"

    assert why_skipped(Drill("a", "w", EXPECTED, executors=("docker",)), "process") == "only in containers"
    assert why_skipped(Drill("a", "w", EXPECTED, executors=("process",)), "docker") == "only as a process"
    assert why_skipped(Drill("a", "w", EXPECTED, outside=Refused()), "docker") == "only root can do this"
    assert why_skipped(Drill("a", "w", EXPECTED), "process") is None
