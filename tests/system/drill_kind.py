"""Makes one kind of drill as a process, without a healthy run after it: drill_kind.py RESULTS KIND; prints JSON."""

import json
import sys
from pathlib import Path

from harness.base.paths import CHECKOUT
from harness.evidence.records import Results
from harness.faults.carry_out import make_drill
from harness.faults.kinds import KINDS
from harness.faults.place import make_place
from harness.matrix.load import load_matrix


def main() -> None:
    """Say what became of it."""
    place = make_place(Results(Path(sys.argv[1])), load_matrix(CHECKOUT / "matrix.yaml"), "process", lambda _: None)
    kind = next(kind for kind in KINDS if kind.name == sys.argv[2])
    print(json.dumps(make_drill(kind, place, next_run=False).as_dict()))


if __name__ == "__main__":
    main()
