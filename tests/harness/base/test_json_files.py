import pytest
from pydantic import ValidationError

from harness.base.json_files import MOST_TOLD, first_problem, headline
from harness.evidence.app_files import Result


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
