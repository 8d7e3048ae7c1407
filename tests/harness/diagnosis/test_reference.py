"""Tests that the reference page of the diagnosis says what the signatures say."""

from harness.diagnosis.reference import HEAD, PAGE, page
from harness.diagnosis.rules import load_signatures


def test_the_page_is_that_of_the_signatures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make schemas`"


def test_every_signature_and_class_is_in_the_tables() -> None:
    signatures, made = load_signatures(), page()
    assert all(signature.id in made for signature in signatures.signatures)
    assert all(f"| `{name}` |" in made for name in signatures.classes)


def test_no_cell_is_broken_by_a_pattern() -> None:
    rows = [line for line in page().removeprefix(HEAD).splitlines() if line.startswith("| ")]
    widths = {line.replace("\\|", "").count("|") for line in rows}
    assert widths == {5, 9}
