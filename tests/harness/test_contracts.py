import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from ruamel.yaml import YAML

from harness.contract_files import FILES, SCHEMAS, TABLE, json_schema, markdown
from harness.contracts import Result
from harness.paths import CHECKOUT


@pytest.mark.parametrize("name", FILES)
def test_the_schemas_in_the_repository_are_those_of_the_types(name: str) -> None:
    kept = (SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")
    assert kept == json_schema(FILES[name]), "run `make schemas`"
    Draft202012Validator.check_schema(json.loads(kept))


def test_the_table_of_keys_in_the_docs_is_that_of_the_types() -> None:
    assert TABLE.read_text(encoding="utf-8") == markdown(), "run `make schemas`"


def test_there_is_no_schema_of_something_else() -> None:
    assert {file.name for file in SCHEMAS.iterdir()} == {f"{name}.schema.json" for name in FILES}


def test_the_matrix_file_follows_its_schema() -> None:
    schema = json.loads((SCHEMAS / "matrix.schema.json").read_text(encoding="utf-8"))
    content = YAML(typ="safe").load((CHECKOUT / "matrix.yaml").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(content)
    content["stacks"]["cpu"]["pyton"] = "3.11"
    assert not Draft202012Validator(schema).is_valid(content)


def test_a_result_with_a_key_too_many_or_too_few_is_refused(result_values: dict[str, Any]) -> None:
    Result.model_validate(result_values)
    with pytest.raises(ValidationError):
        Result.model_validate({**result_values, "extra": 1})
    del result_values["dtype"]
    with pytest.raises(ValidationError):
        Result.model_validate(result_values)
