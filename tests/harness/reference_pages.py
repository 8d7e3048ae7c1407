"""Write the pages of docs/reference that come from the harness's tables (`make docs`); a test compares them."""

from harness.base.paths import CHECKOUT
from harness.doctor.checks import CHECKS, check_id
from harness.faults.kinds import KINDS, FaultKind
from harness.faults.table import injected_by

FOLDER = CHECKOUT / "docs" / "reference"

DOCTOR_HEAD = """\
# Checks of the doctor

Made from the checks of `matrix doctor` by `make docs`; [doctor](../doctor.md) says how to read them.

| check | what it looks at |
|---|---|
"""
FAULTS_HEAD = """\
# Injected faults

Made from the kinds of `matrix inject` by `make docs`; [fault injection](../watching.md#fault-injection) says how they
are used. "Explained as" is the class that `matrix explain` must find. Those with the expectation "no alarm" are
healthy but odd: a watchdog that ends them is wrong. Of a GPU's faults only the signs are simulated: after a simulated
illegal access nothing is broken.

| kind | what happens | injected by | executors | expected | explained as |
|---|---|---|---|---|---|
"""


def doctor_page() -> str:
    """Return the page of the doctor's checks."""
    subjects = {check_id(check): (check.__doc__ or "").splitlines()[0].rstrip(".") for check in CHECKS}
    return DOCTOR_HEAD + "".join(f"| `{name}` | {subject} |\n" for name, subject in subjects.items())


def faults_page() -> str:
    """Return the page of the kinds of injected faults."""
    return FAULTS_HEAD + "".join(map(_row, KINDS))


def _row(kind: FaultKind) -> str:
    classes = " or ".join(kind.expected.classes) or "-"
    cells = (f"`{kind.name}`", kind.what, injected_by(kind), ", ".join(kind.executors), kind.expected.words, classes)
    return f"| {' | '.join(cells)} |\n"


PAGES = {FOLDER / "doctor.md": doctor_page, FOLDER / "faults.md": faults_page}

if __name__ == "__main__":
    for file, made in PAGES.items():
        file.write_text(made(), encoding="utf-8")
