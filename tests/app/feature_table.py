"""Writes the table of docs/features.md from the code: `make docs`. A test says when it is out of date."""

from pathlib import Path

from vpoc.features.table import FEATURES, SCALING

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
BEGIN, END = "<!-- begin: made from the code by `make docs` -->\n", "<!-- end -->\n"


def page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = ["| # | name | formula | unit | scaled by | source |", "|---|---|---|---|---|---|"]
    for number, feature in enumerate(FEATURES, 1):
        size = SCALING[feature.name]
        scaled = size if isinstance(size, str) else "" if size == 1 else f"{size:g}"
        formula = feature.formula.replace("|", "\\|")
        lines.append(f"| {number} | `{feature.name}` | {formula} | {feature.unit} | {scaled} | {feature.source} |")
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
