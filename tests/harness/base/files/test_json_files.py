import json
import tracemalloc

import pytest
from pydantic import ValidationError

from harness.base.files.json_files import MOST_TOLD, first_problem, headline
from harness.evidence.files.app_files import Result


def errors_of(content: bytes) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Result.parse(content)
    return caught.value


def test_what_is_wrong_first_is_reported() -> None:
    assert first_problem(errors_of(b"{}")) == "epochs_requested: Field required"


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
