import importlib
import pkgutil
from pathlib import Path

import harness
from harness.base.errors import UserError

DOCS = Path(__file__).parents[3] / "docs"


def _kinds() -> list[type[UserError]]:
    for module in pkgutil.walk_packages(harness.__path__, "harness."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kinds: list[type[UserError]] = [UserError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return kinds


def test_the_page_on_running_has_each_code_of_an_error() -> None:
    codes = {kind.code for kind in _kinds()} | {"usage", "system"}
    page = (DOCS / "running.md").read_text()
    told = page[page.index("`error` (`code`") :].split("\n\n")[0]
    assert {code for code in codes if f"`{code}`" not in told} == set()
