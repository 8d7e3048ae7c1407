import json
import math
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from harness.base.contract import CONTRACT, NONCE_VARIABLE
from harness.base.files.json_files import File
from harness.base.files.yaml_lines import read_yaml
from harness.base.paths import APP, CHECKOUT
from harness.cli.schemas import FILES, SCHEMAS, TABLE, json_schema, markdown
from harness.evidence.files.app_files import Result, Training
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.gpus.host_changes import HostChange
from harness.evidence.gpus.strikes import Strike
from harness.evidence.isolations import FaultIsolation
from harness.registry.tags.promotions import KnownGood
from harness.slurm.nodes import NodeFacts
from harness.training.state import TrainingState


@pytest.mark.parametrize("name", FILES)
def test_the_schemas_in_the_repository_are_those_of_the_types(name: str) -> None:
    kept = (SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")
    assert kept == json_schema(FILES[name]), "run `make schemas`"
    Draft202012Validator.check_schema(json.loads(kept))


@pytest.mark.parametrize(
    "kind", [FaultIsolation, HostChange, Intent, KnownGood, NodeFacts, Record, Strike, TrainingState]
)
def test_no_time_is_later_than_can_be_shown(kind: type[File]) -> None:
    """Users who share a results folder may write any time into it, and nearly every command shows some times."""
    fields = [one for one in kind.model_fields.values() if "since 1970" in (one.description or "")]
    times: list[Any] = [Annotated[one.annotation, *one.metadata] for one in fields]
    assert times
    for time in times:
        for moment in (1e30, -1.0, math.nan):
            with pytest.raises(ValidationError):
                TypeAdapter(time).validate_python(moment)


def test_the_table_of_keys_in_the_docs_is_that_of_the_types() -> None:
    assert TABLE.read_text(encoding="utf-8") == markdown(), "run `make schemas`"


def test_there_is_no_schema_of_something_else() -> None:
    assert {file.name for file in SCHEMAS.iterdir()} == {f"{name}.schema.json" for name in FILES}


def test_the_matrix_file_follows_its_schema() -> None:
    schema = json.loads((SCHEMAS / "matrix.schema.json").read_text(encoding="utf-8"))
    content = read_yaml(CHECKOUT / "matrix.yaml").data
    Draft202012Validator(schema).validate(content)
    content["stacks"]["cpu"]["pyton"] = "3.11"
    assert not Draft202012Validator(schema).is_valid(content)


def test_app_and_harness_mean_the_same_contract() -> None:
    source = (APP / "vpoc" / "progress.py").read_text(encoding="utf-8")
    assert f"\nCONTRACT = {CONTRACT}\n" in source
    assert f'\nNONCE = "{NONCE_VARIABLE}"\n' in source


def test_a_result_with_a_key_too_many_or_too_few_is_refused(result_values: dict[str, Any]) -> None:
    Result.model_validate(result_values)
    with pytest.raises(ValidationError):
        Result.model_validate({**result_values, "extra": 1})
    del result_values["dtype"]
    with pytest.raises(ValidationError):
        Result.model_validate(result_values)


def test_the_files_of_older_apps_are_read(result_values: dict[str, Any]) -> None:
    result = Result.model_validate(result_values)
    assert (result.model_kind, result.batch_size, result.earlier, result.injected_fault) == ("mlp", None, (), None)
    assert result.trainings == (result,)


NEW_KEYS: dict[str, Any] = {
    "model_kind": "attention",
    "batch_size": 8,
    "micro_batch_size": 4,
    "resumed_at": [17, 40],
    "injected_fault": "flip-gradient@3/1",
    "memory": {
        "peak_allocated_bytes": 1,
        "peak_reserved_bytes": 2,
        "peak_driver_bytes": None,
        "peak_rss_bytes": 3,
        "fragmentation": 0.5,
        "owners": [{"pid": 1, "name": "python", "bytes": 5, "source": "kfd", "card": None}],
    },
    "time": {"device": 1.0, "loader": 2.0, "copy": 0.0, "validate": 1.0, "checkpoint": 0.5, "bookkeeping": 0.1},
}


def test_a_result_with_every_key_follows_schema_and_type_alike(result_values: dict[str, Any]) -> None:
    earlier = {key: result_values[key] for key in Training.model_fields if key in result_values}
    whole = {
        **result_values,
        **NEW_KEYS,
        "earlier": [earlier, {**earlier, "resumed_at": [3], "time": NEW_KEYS["time"]}],
    }
    schema = Draft202012Validator(json.loads((SCHEMAS / "result.schema.json").read_text(encoding="utf-8")))
    schema.validate(whole)
    result = Result.model_validate(whole)
    back = json.loads(result.model_dump_json())
    assert {key: back[key] for key in NEW_KEYS} == NEW_KEYS
    assert Result.model_validate(back) == result
    for wrong in ({"time": {"sleep": 1.0}}, {"model_kind": "cnn"}, {"earlier": [{**earlier, "devices": []}]}):
        assert not schema.is_valid({**whole, **wrong})
        with pytest.raises(ValidationError):
            Result.model_validate({**whole, **wrong})


def test_a_null_says_that_it_could_not_be_told(result_values: dict[str, Any]) -> None:
    nothing = dict.fromkeys(NEW_KEYS["memory"])
    told = Result.model_validate({**result_values, "memory": nothing, "time": None})
    assert told.memory is not None
    assert told.memory.peak_on_device is None
