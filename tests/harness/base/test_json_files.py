import tracemalloc

import pytest
from pydantic import ValidationError

from harness.base.json_files import MOST_TOLD, first_problem, headline
from harness.evidence.app_files import Result


def errors_of(content: bytes) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Result.parse(content)
    return caught.value


def test_what_is_wrong_with_a_file_is_told_without_what_it_holds() -> None:
    content = b'{"options": {"a": [' + b",".join([b"[]"] * 50_000) + b"]}}"
    error = errors_of(content)
    tracemalloc.start()
    try:
        assert first_problem(error) == "epochs_requested: Field required"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A copy of its values takes 3 MB, once for each of the missing keys.
    assert peak < 1 << 20


def test_of_very_many_errors_their_number_is_told() -> None:
    error = errors_of(b'{"epoch_losses": [' + b",".join([b"1"] * (MOST_TOLD + 1)) + b"]}")
    assert first_problem(error) == headline(error) == f"{error.error_count()} validation errors for Result"


def test_the_headline_is_the_first_line_of_the_text() -> None:
    error = errors_of(b"{}")
    assert headline(error) == str(error).splitlines()[0]
    assert headline(ValueError("one\ntwo")) == "one"
