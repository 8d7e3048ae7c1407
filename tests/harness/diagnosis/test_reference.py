"""The page of the diagnosis says what the signatures say."""

from harness.diagnosis.reference import PAGE, tables, with_tables
from harness.diagnosis.rules import load_signatures


def test_the_page_holds_the_tables_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run: .venv/bin/python -m harness.diagnosis.reference"


def test_every_signature_and_class_is_in_the_tables() -> None:
    signatures, made = load_signatures(), tables()
    assert all(signature.id in made for signature in signatures.signatures)
    assert all(f"| `{name}` |" in made for name in signatures.classes)


def test_no_cell_is_broken_by_a_pattern() -> None:
    rows = [line for line in tables().splitlines() if line.startswith("| ")]
    widths = {line.replace("\\|", "").count("|") for line in rows}
    assert widths == {4, 9}
