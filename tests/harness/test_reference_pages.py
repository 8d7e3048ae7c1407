from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.reference_pages import PAGES


@pytest.mark.parametrize(("page", "made"), PAGES.items(), ids=lambda one: getattr(one, "name", ""))
def test_a_reference_page_is_what_the_code_says(page: Path, made: Callable[[], str]) -> None:
    assert page.read_text(encoding="utf-8") == made(), "run `make docs`"
