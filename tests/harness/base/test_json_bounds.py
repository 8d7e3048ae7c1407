import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.base.json_bounds import LARGEST_INTEGER, MOST_LEVELS, beyond_bounds, load_json
from harness.base.json_files import Versioned
from harness.evidence.app_files import Progress
from tests.harness.evidence.test_progress import text

BEYOND = {
    "an integer of 400 digits": ("9" * 400, "a number is too large"),
    "as a text, which is taken for a number": (f'"{"9" * 400}"', "a number is too large"),
    "with spaces": (f'" -{"9" * 70} "', "a number is too large"),
    "just too large": (str(LARGEST_INTEGER + 1), "a number is too large"),
    "just too small": (str(-LARGEST_INTEGER - 1), "a number is too large"),
    "a float": ("1e40", "a number is too large"),
    "deep": ("[" * MOST_LEVELS + "]" * MOST_LEVELS, "it is nested more than 32 levels deep"),
    "deep by turns": ('[{"a":' * 20 + "1" + "}]" * 20, "it is nested more than 32 levels deep"),
}


@pytest.mark.parametrize(("value", "problem"), BEYOND.values(), ids=BEYOND)
def test_beyond(value: str, problem: str) -> None:
    content = f'{{"a": [1, "text", {{"b": {value}}}]}}'.encode()
    excess = beyond_bounds(content)
    assert excess is not None
    assert excess.problem == problem
    assert excess.place in (("a", 2, "b"), ())
    with pytest.raises(ValueError, match=problem):
        load_json(content)
    with pytest.raises(ValidationError, match=problem):
        Versioned.parse(content)


@pytest.mark.parametrize(
    "value", [LARGEST_INTEGER, -LARGEST_INTEGER, 3.4e38, 0.00012345678901234567, "a" * 400, "0" * 64, [[1]] * 100, None]
)
def test_within(value: object) -> None:
    content = json.dumps({"a": value})
    assert beyond_bounds(content.encode()) is None
    assert load_json(content) == {"a": value}


def test_what_is_no_json_is_refused_by_what_reads_it() -> None:
    for content in (b"{" * 100, b"9" * 5000, b"\xff" * 40):
        assert beyond_bounds(content) is None
        with pytest.raises(ValueError, match=r"."):
            load_json(content)


@pytest.mark.parametrize("digits", [30, 400, 5000])
@pytest.mark.parametrize("key", ["wall", "monotonic", "rank", "pid", "done", "total", "loss", "max_step_s"])
def test_a_progress_line_with_a_huge_number_is_none(tmp_path: Path, key: str, digits: int) -> None:
    line = json.loads(text(1))
    Progress.parse(json.dumps(line))
    huge = json.dumps({**line, key: "HUGE"}).replace('"HUGE"', "9" * digits)
    with pytest.raises(ValidationError):
        Progress.parse(huge)
