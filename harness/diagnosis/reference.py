"""The signatures as the table in docs/diagnosis.md: `python -m harness.diagnosis.reference` writes it anew."""

from collections.abc import Iterator

from harness.base.paths import CHECKOUT
from harness.diagnosis.rules import Signature, load_signatures

PAGE = CHECKOUT / "docs" / "diagnosis.md"
BEGIN, END = "<!-- made from signatures.yaml -->\n", "<!-- end -->\n"
MOST_PATTERNS = 3


def tables() -> str:
    """The tables of classes and of signatures."""
    return "\n".join([*_classes(), "", *_signatures()]) + "\n"


def with_tables(page: str) -> str:
    """A page with the tables of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def _classes() -> Iterator[str]:
    yield "| class | whose | what |"
    yield "|---|---|---|"
    for name, one in load_signatures().classes.items():
        yield f"| `{name}` | {one.fault} | {one.what} |"


def _signatures() -> Iterator[str]:
    yield "| rule | where | counts as | class | recognised by | why | what helps | presets |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in load_signatures().signatures:
        name = f"[{one.id}]({one.link})" if one.link else one.id
        versions = "".join(f" ({what} {have})" for what, have in (("ROCm", one.rocm), ("torch", one.torch)) if have)
        cells = [name, one.where, f"{one.severity}{versions}", f"`{one.class_}`", _patterns(one), one.cause]
        yield f"| {' | '.join([*cells, one.remedy, ', '.join(one.presets)])} |"


def _patterns(one: Signature) -> str:
    """Its first patterns; the file has them all."""
    patterns = [*one.text, *(pattern.pattern for pattern in one.regex)]
    shown = [f"`{pattern.replace('|', chr(92) + '|').replace('`', chr(39))}`" for pattern in patterns[:MOST_PATTERNS]]
    return ", ".join(shown) + (", ..." if len(patterns) > MOST_PATTERNS else "")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
