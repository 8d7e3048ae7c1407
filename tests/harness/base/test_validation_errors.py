import json
import tracemalloc
from typing import Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from harness.base.validation_errors import MOST_TOLD, first_problem, headline, in_plain_words
from harness.evidence.files.app_files import Result


def errors_of(content: bytes) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Result.parse(content)
    return caught.value


def test_what_is_wrong_first_is_reported() -> None:
    assert first_problem(errors_of(b"{}")) == "epochs_requested: is missing"


class Values(BaseModel):
    count: int = Field(1, ge=1, lt=9)
    share: float = Field(1, gt=0, le=1, allow_inf_nan=False)
    flag: bool = True
    reason: str = Field("", min_length=3)
    entries: tuple[int, ...] = Field((), min_length=1)
    limits: dict[str, int] = {}
    side: Literal["open", "close"] = "open"
    name: str = Field("", pattern=r"^[a-z]+$")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("count", "zero", "should be a whole number, not 'zero'"),
        ("count", 1.5, "should be a whole number, not 1.5"),
        ("count", None, "should be a whole number, not nothing"),
        ("name", "My", "should match ^[a-z]+$, not 'My'"),
        ("count", 0, "should be 1 or more, not 0"),
        ("count", 9, "should be less than 9, not 9"),
        ("share", "half", "should be a number, not 'half'"),
        ("share", float("nan"), "should be a finite number, not nan"),
        ("share", 0, "should be more than 0.0, not 0"),
        ("share", 2, "should be 1.0 or less, not 2"),
        ("flag", "perhaps", "should be true or false, not 'perhaps'"),
        ("reason", True, "should be a text in quotes, not true"),
        ("reason", "so", "should have 3 characters or more, not 'so'"),
        ("entries", 3, "should be a list, not 3"),
        ("entries", [], "should have 1 entries or more"),
        ("limits", "x" * 99, "should be a mapping (key: value)"),
        ("side", "both", "should be 'open' or 'close', not 'both'"),
    ],
)
def test_a_wrong_value_is_reported_in_plain_words(key: str, value: object, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Values.model_validate({key: value})
    assert in_plain_words(caught.value.errors()[0]) == told


def test_of_very_many_errors_their_number_is_reported() -> None:
    error = errors_of(b'{"epoch_losses": [' + b",".join([b"1"] * (MOST_TOLD + 1)) + b"]}")
    assert first_problem(error) == headline(error) == f"{error.error_count()} validation errors for Result"


def test_the_headline_is_the_first_line_of_the_text() -> None:
    error = errors_of(b"{}")
    assert headline(error) == str(error).splitlines()[0]
    assert headline(ValueError("one\ntwo")) == "one"


def test_of_what_is_wrong_no_error_has_a_copy() -> None:
    content = json.dumps({"options": {f"option {number}": number for number in range(5000)}}).encode()
    errors_of(b"{}")
    tracemalloc.start()
    try:
        error = errors_of(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (error.error_count() > 20, peak < 5 << 20) == (True, True)
