from pathlib import Path

from vpoc.data import columns
from vpoc.data.readers.column_names import COLUMN_NAMES

DOCUMENT = Path(__file__).parents[3] / "docs" / "data.md"


def test_the_documented_columns_are_those_of_the_code() -> None:
    table = [line for line in (columns.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(table) == 7
    assert "\n".join(table) in DOCUMENT.read_text(encoding="utf-8")
    named = {word.strip(" `") for row in table[2:] for word in row.split("|")[1].split(",")}
    assert named == {*columns.REQUIRED, *columns.OPTIONAL}


def test_every_name_of_the_vix_has_that_word_in_it_by_which_the_harness_misses_the_column() -> None:
    assert all("vix" in name for name in COLUMN_NAMES["vix"])
