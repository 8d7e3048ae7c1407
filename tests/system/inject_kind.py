"""Inject one kind of fault into a process, with no healthy run after it: inject_kind.py RESULTS KIND; prints JSON."""

import json
import sys
from pathlib import Path

from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from harness.faults.inject import inject_fault
from harness.faults.kinds import KINDS
from harness.faults.target import make_target
from harness.matrix.load import load_matrix


def main() -> None:
    """Inject the fault and print the result."""
    target = make_target(Results(Path(sys.argv[1])), load_matrix(CHECKOUT / "matrix.yaml"), "process", lambda _: None)
    kind = next(kind for kind in KINDS if kind.name == sys.argv[2])
    print(json.dumps(inject_fault(kind, target, next_run=False).as_dict()))


if __name__ == "__main__":
    main()
