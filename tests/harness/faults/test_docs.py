"""The table of kinds in the docs is the one in the code."""

from harness.base.paths import CHECKOUT
from harness.faults.kinds import KINDS, FaultKind
from harness.faults.table import injected_by


def row(kind: FaultKind) -> str:
    classes = " or ".join(kind.expected.classes) or "-"
    cells = (f"`{kind.name}`", kind.what, injected_by(kind), ", ".join(kind.executors), kind.expected.words, classes)
    return f"| {' | '.join(cells)} |"


def test_the_docs_have_every_kind_as_it_is() -> None:
    lines = (CHECKOUT / "docs" / "drills.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    expected = [row(kind) for kind in KINDS]
    assert rows == expected, "\n".join(expected)
