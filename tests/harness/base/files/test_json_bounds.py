import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from harness.base.files.json_bounds import LARGEST_INTEGER, MOST_LEVELS, MOST_VALUES, beyond_bounds, load_json
from harness.base.files.json_files import Versioned
from harness.evidence.files.app_files import Progress, Result
from harness.evidence.files.run_files import EvidenceLine, Explanation, Record
from tests.harness.evidence.app_reports.test_progress import text

BEYOND = {
    "an integer of 400 digits": ("9" * 400, "a number is too large"),
    "just too large": (str(LARGEST_INTEGER + 1), "a number is too large"),
    "just too small": (str(-LARGEST_INTEGER - 1), "a number is too large"),
    "a float": ("1e40", "a number is too large"),
    "deep": ("[" * MOST_LEVELS + "]" * MOST_LEVELS, "it is nested more than 32 levels deep"),
    "deep, beside texts that look like the ends of it": (
        '["]]]]", ' * MOST_LEVELS + '"}"' + "]" * MOST_LEVELS,
        "it is nested more than 32 levels deep",
    ),
    "a number behind a text that ends in a backslash": (r'["\\", ' + "9" * 400 + "]", "a number is too large"),
    "deep by turns": ('[{"a":' * 20 + "1" + "}]" * 20, "it is nested more than 32 levels deep"),
}


@pytest.mark.parametrize(("value", "problem"), BEYOND.values(), ids=BEYOND)
def test_beyond(value: str, problem: str) -> None:
    content = f'{{"a": [1, "text", {{"b": {value}}}]}}'.encode()
    excess = beyond_bounds(content)
    assert excess is not None
    assert excess.problem == problem
    assert excess.place in (("a", 2, "b"), ("a", 2, "b", 1), ())
    with pytest.raises(ValueError, match=problem):
        load_json(content)
    with pytest.raises(ValidationError, match=problem):
        Versioned.parse(content)


@pytest.mark.parametrize(
    "value",
    [LARGEST_INTEGER, -LARGEST_INTEGER, 3.4e38, 0.00012345678901234567, "a" * 400, "0" * 400, [[1]] * 100, None],
)
def test_within(value: object) -> None:
    content = json.dumps({"a": value})
    assert beyond_bounds(content.encode()) is None
    assert load_json(content) == {"a": value}


def test_what_is_no_json_is_refused_by_what_reads_it() -> None:
    # A search for the end of the last string from each of its quotes would take weeks.
    for content in (b"{" * 100, b"9" * 5000, b"\xff" * 40, b'{"a": "' + b'\\"' * (1 << 20)):
        assert beyond_bounds(content) is None
        with pytest.raises(ValueError, match=r"."):
            load_json(content)


@pytest.mark.parametrize("key", ["wall", "monotonic", "rank", "pid", "done", "total", "loss", "max_step_s"])
def test_a_progress_line_with_a_huge_number_is_none(key: str) -> None:
    line = json.loads(text(1))
    Progress.parse(json.dumps(line))
    for digits in (30, 400, 5000):
        huge = json.dumps({**line, key: "HUGE"}).replace('"HUGE"', "9" * digits)
        with pytest.raises(ValidationError):
            Progress.parse(huge)


@pytest.mark.parametrize("key", ["rank", "pid", "done"])
def test_a_text_of_digits_is_no_way_around(key: str) -> None:
    line = json.loads(text(1))
    for text_of in ("{}", " {} ", "-{}", "{}.0"):
        plain = json.dumps({**line, key: text_of.format("9" * 400)})
        for one in (plain, plain.replace("9" * 400, r"\u0039" * 400)):
            with pytest.raises(ValidationError):
                Progress.parse(one)


def test_a_text_of_digits_in_a_record_does_not_make_it_unreadable(make_record: Callable[..., Record]) -> None:
    digits = "9" * 400
    lines = (EvidenceLine(file="log.txt", line=1, text=digits),)
    why = Explanation(rule=None, class_="unknown", cause=digits, remedy="", link=None, presets=(), lines=lines)
    record = make_record().model_copy(update={"explanation": why, "detail": digits})
    assert Record.parse(record.model_dump_json(by_alias=True)) == record


def test_whatever_a_result_may_hold_its_record_can_be_read(
    make_record: Callable[..., Record], result_values: dict[str, Any]
) -> None:
    for levels in range(40):
        result_values["options"]["x"] = json.loads("[" * levels + "1" + "]" * levels)
        try:
            result = Result.parse(json.dumps(result_values))
        except ValidationError:
            assert levels > 10
            return
        record = make_record().model_copy(update={"result": result})
        Record.parse(record.model_dump_json(by_alias=True, indent=2))
    pytest.fail("nothing was too deep")


def test_more_values_than_a_file_has_are_not_made() -> None:
    content = b'{"a": [' + b",".join([b"[]"] * MOST_VALUES) + b"]}"
    excess = beyond_bounds(content)
    assert excess == ((), f"it holds more than {MOST_VALUES:,} values")
    for one in (content, content.decode()):
        with pytest.raises(ValueError, match="it holds more than"):
            load_json(one)
    with pytest.raises(ValidationError, match="it holds more than"):
        Result.parse(content)


def test_what_is_in_strings_is_no_value() -> None:
    content = json.dumps({"a": ",[{" * MOST_VALUES, "b": [1] * 1000})
    assert beyond_bounds(content.encode()) is None
    assert load_json(content) == json.loads(content)
