"""Feature sets as parquet files that name the data they were made from."""

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import polars as pl

from vpoc import __version__
from vpoc.checksummed_parquet import (
    DamagedError,
    checksummed_facts,
    is_of_one_size,
    names_digest,
    read_checksummed,
    write_checksummed,
)
from vpoc.data.exchange.rolls import rolls_sha256
from vpoc.errors import UserError, from_os_error
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.feature_set import FeatureSet
from vpoc.features.market import Market
from vpoc.features.table import FEATURES_SCHEMA, NAMES
from vpoc.features.targets import SIZE_TARGETS, TARGETS
from vpoc.files import is_own, read_bytes
from vpoc.source import features_source

FEATURES_KEY = "vpoc"


def write_features(path: Path, features: FeatureSet) -> None:
    """Write `features` as parquet, atomically; all but the frame goes into the metadata, as JSON under `vpoc`.

    The metadata also have the schema, the version and the source of this program, and the SHA-256 of the file.
    """
    made_by = {"schema": FEATURES_SCHEMA, "app_version": __version__, "source": features_source()}
    document = {**made_by, **_facts(features)}
    write_checksummed(path, features.frame, FEATURES_KEY, document, compression="lz4")


def read_features(path: Path) -> FeatureSet:
    """Read a file that `write_features` wrote.

    UserError when it is anything else, was changed since, or is of another version of this program.
    """
    try:
        frame, facts = read_checksummed(read_bytes(path), FEATURES_KEY)
    except DamagedError as error:
        raise _damaged(path) from error
    return _feature_set(path, frame, facts)


def require_no_other_file(path: Path) -> None:
    """Raise UserError when a file is at `path` that `write_features` did not write; one that was damaged may go."""
    try:
        if path.exists() and path.stat().st_size and not names_digest(path):
            raise UserError(
                f"{path}: is there, and is not what this command wrote; give another --output, or remove it"
            )
    except OSError as error:
        raise from_os_error(error, path) from error


def held_features(
    path: Path, digest: Future[str], options: FeatureOptions, accepted: Collection[str]
) -> FeatureSet | None:
    """Return the features at `path`, if they are those that would be computed; None if there are others, or none.

    Those of another user are others, because they cannot be compared with the data, and so are those of other source,
    which may have the same schema. `digest`: the SHA-256 of the data.
    """
    if not is_own(path):
        return None
    try:
        frame, facts = read_checksummed(read_bytes(path), FEATURES_KEY)
        if facts.get("source") != features_source():
            return None
        found = _feature_set(path, frame, facts)
        require_same_features(path, found, digest.result(), options, accepted)
    except (DamagedError, UserError):
        return None
    return found


def read_facts(path: Path) -> FeatureSet:
    """Do what `read_features` does with little memory and without the rows: the frame has only the columns."""
    try:
        facts = checksummed_facts(path, FEATURES_KEY)
    except OSError as error:
        raise from_os_error(error, path) from error
    except DamagedError as error:
        raise _damaged(path) from error
    return _feature_set(path, pl.scan_parquet(path).head(0).collect(), facts)


def _damaged(path: Path) -> UserError:
    return UserError(f"{path}: not a file that `vpoc features` wrote, or changed since; make it again")


def _feature_set(path: Path, frame: pl.DataFrame, facts: dict[str, Any]) -> FeatureSet:
    found = facts.pop("schema", 0), facts.pop("app_version", "")
    facts.pop("source", None)
    if found != (FEATURES_SCHEMA, __version__) or not set(NAMES) <= set(frame.columns):
        raise UserError(
            f"{path}: its features are not those of this version, or have other names; make it again with "
            "`vpoc features`"
        )
    usual = _facts(FeatureSet(frame.head(0), FeatureOptions(), "", 0, 0, 0, 0, {}))
    # A correct hash proves nothing: anyone who makes a file can also compute its hash.
    if not _is_like(facts, usual):
        raise _damaged(path)
    options, schema = FeatureOptions(**facts["options"]), frame.schema
    numbers = (*NAMES, *TARGETS.get(options.rows, ()), *SIZE_TARGETS.get(options.rows, ()))
    if not all(name in schema and schema[name].is_numeric() for name in numbers):
        raise _damaged(path)
    if not all(map(is_of_one_size, schema.values())):
        raise _damaged(path)
    if schema.get("trade_date") != pl.Date or not frame["trade_date"].is_sorted():
        raise _damaged(path)
    made = {
        "options": options,
        "market": Market(**facts["market"]),
        **{name: tuple(facts[name]) for name in ("accepted", "smaller_kept")},
    }
    return FeatureSet(**{**facts, "frame": frame, **made})


def _is_like(told: Any, usual: Any) -> bool:
    """Return whether what was read from JSON has the keys and types of what `write_features` was given."""
    if isinstance(usual, dict) and usual:
        same = isinstance(told, dict) and told.keys() == usual.keys()
        return same and all(_is_like(told[name], value) for name, value in usual.items())
    kinds: dict[type[Any], Any] = {tuple: list, float: (int, float)}
    return isinstance(told, kinds.get(type(usual), type(usual)))


def require_same_features(
    path: Path, features: FeatureSet, data_sha256: str, options: FeatureOptions, accepted: Collection[str] = ()
) -> None:
    """Raise UserError when `features`, read from `path`, were not made from this data and these options.

    The same error is raised when the file of rolls has changed since, and when the data breaks a rule that was accepted
    then and is not `accepted` now.
    """
    # The number of sessions computed at a time does not change the features.
    options = replace(options, chunk_size=features.options.chunk_size)
    made, wanted = (
        {"data_sha256": sha, **asdict(o)}
        for sha, o in ((features.data_sha256, features.options), (data_sha256, options))
    )
    for name, value in wanted.items():
        if made[name] != value:
            option = name.replace("_", "-")
            raise UserError(
                f"{path}: made with {option} {made[name]}, but this run has {option} {value}; "
                "make it again with `vpoc features` from this data and these options"
            )
    if features.rolls_sha256 != rolls_sha256(options.rolls):
        raise UserError(
            f"{path}: made with other rolls than {options.rolls} has now; make it again with `vpoc features`"
        )
    for rule in features.accepted:
        if rule not in accepted:
            raise UserError(
                f"{path}: made with --accept {rule} of data that is not plausible by this rule; correct the data, as "
                f"`vpoc check` advises, or say --accept {rule} here, too"
            )


def _facts(features: FeatureSet) -> dict[str, Any]:
    facts = {field.name: getattr(features, field.name) for field in fields(features) if field.name != "frame"}
    return {**facts, "options": asdict(features.options), "market": asdict(features.market)}
