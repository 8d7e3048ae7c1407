"""Feature sets as parquet files that say which data they belong to."""

import io
import json
from dataclasses import fields
from pathlib import Path

import polars as pl

from vpoc.errors import UserError
from vpoc.features.build import FeatureSet
from vpoc.features.table import NAMES
from vpoc.files import read_bytes, write_atomic

KEY = "vpoc"


def write_features(path: Path, features: FeatureSet) -> None:
    """Write `features` as parquet, atomically; all but the frame goes into the metadata, as JSON under `vpoc`."""
    facts = {field.name: getattr(features, field.name) for field in fields(features) if field.name != "frame"}
    buffer = io.BytesIO()
    features.frame.write_parquet(buffer, metadata={KEY: json.dumps({"schema": 1, **facts})})
    write_atomic(path, buffer.getvalue())


def read_features(path: Path) -> FeatureSet:
    """Read what `write_features` wrote; UserError when it is anything else or has other feature columns."""
    content = read_bytes(path)
    try:
        facts = json.loads(pl.read_parquet_metadata(io.BytesIO(content))[KEY])
        facts.pop("schema")
        frame = pl.read_parquet(io.BytesIO(content))
        features = FeatureSet(frame=frame, **facts)
    except (pl.exceptions.PolarsError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a file that `vpoc features` wrote; make it again") from error
    if not set(NAMES) <= set(frame.columns):
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
