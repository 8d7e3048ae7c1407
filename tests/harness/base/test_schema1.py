import pytest
from pydantic import ValidationError

from harness.base.files.json_files import Versioned
from harness.base.schema1 import upgraded, upgraded_values


@pytest.mark.parametrize("ends", ["]" * 600 + "}", "]" * 100_000 + "}", ""])
def test_what_is_nested_too_deeply_is_refused_like_any_other_damage(ends: str) -> None:
    # An app that is not trusted writes such files, and the harness reads them.
    content = ('{"schema": 1, "standstill": ' + "[" * max(600, len(ends) - 1) + ends).encode()
    upgraded(content)
    with pytest.raises(ValidationError):
        Versioned.parse(content)


def test_bounds_hold_for_what_only_pythons_own_parser_reads() -> None:
    # It skips the mark, by which the bounds take the text for no JSON.
    content = b'\xef\xbb\xbf{"schema": 1, "standstill": ' + b"9" * 60 + b"}"
    assert upgraded(content) == content


def test_what_explains_a_failure_has_its_present_name() -> None:
    record = {"schema": 1, "diagnosis": "sick-gpu", "explanation": {"class": "sick-gpu", "cause": "sick-gpu"}}
    assert upgraded_values(record) == {
        "schema": 2,
        "diagnosis": "unhealthy-gpu",
        "explanation": {"class": "unhealthy-gpu", "cause": "sick-gpu"},
    }
