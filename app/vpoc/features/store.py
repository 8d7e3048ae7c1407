"""Feature sets as parquet files that say which data they belong to."""

import hashlib
import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl

from vpoc import __version__
from vpoc.errors import UserError
from vpoc.features.build import FeatureSet
from vpoc.features.table import NAMES
from vpoc.files import read_bytes, write_atomic

KEY = "vpoc"
SCHEMA = 1


def write_features(path: Path, features: FeatureSet) -> None:
    """Write `features` as parquet, atomically; all but the frame goes into the metadata, as JSON under `vpoc`.

    The metadata also hold the schema, the version of this program and the SHA-256 of facts and columns.
    """
    facts: dict[str, Any] = {
        field.name: getattr(features, field.name) for field in fields(features) if field.name != "frame"
    }
    document = {"schema": SCHEMA, "app_version": __version__, "content_sha256": _sha256(facts, features.frame), **facts}
    buffer = io.BytesIO()
    features.frame.write_parquet(buffer, metadata={KEY: json.dumps(document)})
    write_atomic(path, buffer.getvalue())


def read_features(path: Path) -> FeatureSet:
    """Read what `write_features` wrote.

    UserError when it is anything else, was changed since, or is of another version of this program.
    """
    content = read_bytes(path)
    try:
        facts = json.loads(pl.read_parquet_metadata(io.BytesIO(content))[KEY])
        found = facts.pop("schema"), facts.pop("app_version")
        digest = facts.pop("content_sha256")
        frame = pl.read_parquet(io.BytesIO(content))
        features = FeatureSet(frame=frame, **facts)
    except (pl.exceptions.PolarsError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a file that `vpoc features` wrote; make it again") from error
    if digest != _sha256(facts, frame):
        raise UserError(f"{path}: its content is not what `vpoc features` wrote there; make it again")
    if found != (SCHEMA, __version__) or not set(NAMES) <= set(frame.columns):
        raise UserError(f"{path}: its features are not those of this version; make it again with `vpoc features`")
    return features


def require_same(path: Path, features: FeatureSet, expected: dict[str, object]) -> None:
    """UserError when `features`, read from `path`, was not made from the data and options in `expected`."""
    for field in fields(FeatureSet):
        if field.name in expected and getattr(features, field.name) != expected[field.name]:
            name = field.name.replace("_", "-")
            raise UserError(
                f"{path}: made with {name} {getattr(features, field.name)}, but this run has {name} "
                f"{expected[field.name]}; make it again with `vpoc features` from this data and these options"
            )


def _sha256(facts: dict[str, Any], frame: pl.DataFrame) -> str:
    """SHA-256 of `facts` and of the names, types, nulls and values of the columns."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for column in frame.iter_columns():
        values = column.to_physical().fill_null(0).to_numpy()
        digest.update(json.dumps([column.name, str(column.dtype), str(values.dtype)]).encode())
        digest.update(column.is_null().to_numpy().tobytes())
        digest.update(values.tobytes())
    return digest.hexdigest()
