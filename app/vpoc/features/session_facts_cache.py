"""The cache of session facts, a parquet file, so that session rows of the same data need no bars.

It is valid only for the present fields of SessionFacts and the source that computes them: any other file is ignored,
so there is no version number to raise.
"""

from concurrent.futures import Future
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.checksummed_parquet import DamagedError, read_checksummed, write_checksummed
from vpoc.data.bars import COLUMNS, Bars
from vpoc.data.cache import BARS_FACTS, facts_of_bars
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.session_facts import SessionFacts
from vpoc.files import hash_in_thread, is_own
from vpoc.source import features_source

SESSION_FACTS_KEY = "vpoc-session-facts"
DECIDING = ("placement", "value_area", "rth_close")
"""Options that the facts of sessions depend on."""
OTHERS = ("in_progress", "histogram")
"""Fields that are not an array with one value, or one row, for each session."""


def write_session_facts(path: Path, bars: Bars, days: SessionFacts, options: FeatureOptions) -> None:
    """Write `days`, the sessions of `bars` with `options`, to `path`."""
    widest = max(map(len, days.histogram))
    small = int(days.curve.max(initial=0)) < 2**31
    kind: Any = np.int32 if small else np.int64
    histogram = np.zeros((len(days), widest), dtype=kind)
    for row, volumes in zip(histogram, days.histogram, strict=True):
        row[: len(volumes)] = volumes
    arrays = {**dict(_arrays(days)), "histogram": histogram, "curve": days.curve.astype(kind)}
    frame = pl.DataFrame({name: pl.Series(array) for name, array in arrays.items()})
    facts = {name: getattr(bars, name) for name in BARS_FACTS}
    write_checksummed(
        path,
        frame,
        SESSION_FACTS_KEY,
        {**_deciding(options), **facts, "in_progress": days.sessions.in_progress},
        compression="uncompressed",
        durable=False,
    )


def cached_session_facts(
    path: Path, data: Path, digest: Future[str] | None, options: FeatureOptions
) -> tuple[Bars, SessionFacts] | None:
    """Return what `write_session_facts` was given for the content of `data` and these options; the Bars have no rows.

    None if `path` does not exist, or is torn, changed, or of other data, options, fields or source, or of another
    user. `digest`: the SHA-256 of `data`, if it is already being computed.
    """
    if not is_own(path):
        return None
    digest = digest or hash_in_thread(data)
    try:
        frame, facts = read_checksummed(path.read_bytes(), SESSION_FACTS_KEY, arrays=True)
    except (OSError, DamagedError):
        return None
    wanted = _deciding(options)
    if {name: facts.pop(name, None) for name in wanted} != wanted:
        return None
    # A correct hash proves nothing: anyone who makes a file can also compute its hash.
    if {name: type(fact) for name, fact in facts.items()} != {**BARS_FACTS, "in_progress": bool}:
        return None
    names = {name for name in wanted["fields"] if name.rpartition(".")[2] != "in_progress"}
    if facts["sha256"] != digest.result() or set(frame.columns) != names or not frame.height:
        return None
    arrays = {name: _wide(frame[name].to_numpy()) for name in frame.columns}
    if any(frame[name].null_count() or array.dtype.kind not in "iufbM" for name, array in arrays.items()):
        return None
    widths = arrays["high"] - arrays["low"] + 1
    if arrays["histogram"].ndim != arrays["curve"].ndim or not (widths > 0).all():
        return None
    found = _made(SessionFacts, arrays, in_progress=facts.pop("in_progress"))
    none: dict[str, Any] = dict.fromkeys(COLUMNS, np.empty(0))
    return Bars(path=data, **none, **facts_of_bars(facts)), found


def _wide(array: Any) -> Any:
    """Return the integers in the type that computations use."""
    return array.astype(np.int64, copy=False) if array.dtype.kind == "i" else array


def _deciding(options: FeatureOptions) -> dict[str, Any]:
    chosen = asdict(options)
    return {
        "fields": _field_names(SessionFacts),
        "source": features_source(),
        **{name: chosen[name] for name in DECIDING},
    }


def _field_names(kind: Any, prefix: str = "") -> list[str]:
    """Return the fields of a dataclass and of nested dataclasses, as dotted names."""
    names = []
    for field in fields(kind):
        inner = is_dataclass(field.type)
        names += _field_names(field.type, f"{prefix}{field.name}.") if inner else [prefix + field.name]
    return names


def _arrays(part: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the arrays in a dataclass, by dotted names."""
    found = []
    for field in fields(part):
        value, name = getattr(part, field.name), prefix + field.name
        if is_dataclass(value):
            found += _arrays(value, f"{name}.")
        elif field.name not in OTHERS:
            found.append((name, value))
    return found


def _made(kind: Any, arrays: dict[str, Any], prefix: str = "", **others: Any) -> Any:
    """Create a dataclass of this kind from arrays in the form of `_arrays`."""
    values = {}
    for field in fields(kind):
        name = prefix + field.name
        if is_dataclass(field.type):
            values[field.name] = _made(field.type, arrays, f"{name}.", **others)
        elif field.name == "histogram":
            widths = arrays["high"] - arrays["low"] + 1
            values[field.name] = tuple(row[:width] for row, width in zip(arrays[name], widths.tolist(), strict=True))
        else:
            values[field.name] = others[field.name] if field.name in others else arrays[name]
    return kind(**values)
