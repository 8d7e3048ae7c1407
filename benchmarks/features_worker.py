"""Do the jobs of one side of benchmarks/features.py, in the interpreter that has the package to measure.

`features_worker.py KIND FILE` prepares, does every job once unmeasured, and prints a line of JSON with the names of its
jobs and the versions of its packages. Then it reads names of jobs, a line each, does the job once and prints its
seconds. The kinds profile, read and device use the app's interpreter and the merged CSV; marketprofile and wickra use
the peers' interpreter and the columns that the worker `profile` wrote beside the CSV. All but `read` use one core.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS")
STAMP_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

Jobs = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Columns:
    """The part of `vpoc.data.bars.Bars` that profiles need: stamps in seconds, prices in ticks, [rows]."""

    path: Path
    ts: Any
    low: Any
    high: Any
    close: Any
    volume: Any


@dataclass(frozen=True)
class Spans:
    """The part of `vpoc.data.exchange.sessions.Sessions` that profiles need: rows start..stop-1, [sessions]."""

    date: Any
    start: Any
    stop: Any

    def __len__(self) -> int:
        return len(self.start)

    def take(self, keep: Any) -> "Spans":
        """Return the sessions selected by `keep`."""
        return Spans(self.date[keep], self.start[keep], self.stop[keep])


def whole_sessions(file: Path) -> tuple[Columns, Spans]:
    """Return the bars of a synthetic file, and its sessions with all their hours."""
    import numpy as np  # noqa: PLC0415
    import polars as pl  # type: ignore[import-not-found]  # noqa: PLC0415

    from vpoc.data.synth import BARS  # type: ignore[import-not-found]  # noqa: PLC0415

    frame = pl.read_csv(file, infer_schema_length=None)
    ticks = {name: np.rint(frame[name].to_numpy() * 4).astype(np.int64) for name in ("low", "high", "close")}
    ts = frame["ts"].str.to_datetime(STAMP_FORMAT).dt.epoch("s").to_numpy()
    start = np.arange(0, len(ts), BARS)
    columns = Columns(path=file, ts=ts, **ticks, volume=frame["volume"].to_numpy())
    return columns, Spans(start, start, start + BARS)


def profile(file: Path) -> Jobs:
    """Return the app's job: exact profile, VPOC and value area of every session from columns in memory."""
    import numpy as np  # noqa: PLC0415

    from vpoc.features.feature_options import FeatureOptions  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.profile.session_profiles import session_levels  # type: ignore[import-not-found]  # noqa: PLC0415

    bars, spans = whole_sessions(file)
    chunk_size = FeatureOptions().chunk_size
    arrays = {name: getattr(bars, name) for name in ("ts", "low", "high", "close", "volume")}
    np.savez(columns_file(file), start=spans.start, stop=spans.stop, **arrays)
    return {"vpoc": lambda: session_levels(bars, spans, chunk_size)}


def columns_file(file: Path) -> Path:
    """Return the file with the columns of a CSV, for workers without the app."""
    return file.with_suffix(".npz")


def marketprofile(file: Path) -> Jobs:
    """Return MarketProfile's job: a profile of volume at the close, with rows of one tick."""
    import numpy as np  # noqa: PLC0415
    import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415
    from market_profile import MarketProfile  # type: ignore[import-not-found]  # noqa: PLC0415

    columns = np.load(columns_file(file))
    names = {"High": "high", "Low": "low", "Close": "close"}
    frame = pd.DataFrame(
        {**{name: columns[column] / 4 for name, column in names.items()}, "Volume": columns["volume"]},
        index=pd.to_datetime(columns["ts"], unit="s"),
    )
    stamps = frame.index
    ends = [(stamps[a], stamps[b - 1]) for a, b in zip(columns["start"], columns["stop"], strict=True)]

    def every_session() -> list[Any]:
        whole = MarketProfile(frame, tick_size=0.25)
        slices = (whole[first:last] for first, last in ends)
        return [(one.poc_price, one.value_area) for one in slices]

    return {"marketprofile": every_session}


def wickra(file: Path) -> Jobs:
    """Return Wickra's job: volume spread over low..high in floats, with as many bins as the session has ticks."""
    import numpy as np  # noqa: PLC0415
    from wickra import ValueArea  # type: ignore[import-not-found]  # noqa: PLC0415

    columns = np.load(columns_file(file))
    low, high, volume = columns["low"] / 4, columns["high"] / 4, columns["volume"].astype(np.float64)
    spans = list(zip(columns["start"].tolist(), columns["stop"].tolist(), strict=True))
    ticks = [int(columns["high"][a:b].max() - columns["low"][a:b].min()) + 1 for a, b in spans]

    def every_session() -> list[Any]:
        return [
            ValueArea(b - a, bins, 0.7).batch(high[a:b], low[a:b], volume[a:b])[-1]
            for (a, b), bins in zip(spans, ticks, strict=True)
        ]

    assert np.isfinite(every_session()).all()
    return {"wickra": every_session}


def read(file: Path) -> Jobs:
    """Return the job of polars.read_csv: every column, with given types and an explicit format of the stamps."""
    import polars as pl  # noqa: PLC0415

    types = dict.fromkeys(("open", "high", "low", "close", "vix"), pl.Float64) | {"ts": pl.String, "volume": pl.Int64}
    stamps = pl.col("ts").str.to_datetime(STAMP_FORMAT)
    return {"read": lambda: pl.read_csv(file, schema_overrides=types).with_columns(stamps)}


def device(file: Path) -> Jobs:
    """Return the jobs of the device paths with torch on the CPU; their answers are compared with the app's."""
    import numpy as np  # noqa: PLC0415
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415

    from vpoc.features.feature_options import FeatureOptions  # noqa: PLC0415
    from vpoc.profile.device.paths import PATHS, device_levels  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.profile.facts import concatenated  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.profile.session_profiles import session_levels  # noqa: PLC0415

    torch.set_num_threads(1)
    bars, spans = whole_sessions(file)
    chunk_size = FeatureOptions().chunk_size
    exact = session_levels(bars, spans, chunk_size)

    def along(path: str) -> Callable[[], list[Any]]:
        return lambda: list(device_levels(bars, spans, path, "cpu", chunk_size))

    jobs: Jobs = {path: along(path) for path in PATHS}
    for path, job in jobs.items():
        levels = concatenated(job())
        for field in fields(exact):
            if not np.array_equal(getattr(levels, field.name), getattr(exact, field.name)):
                raise SystemExit(f"{path}: {field.name} is not what the CPU gives")
    return jobs


KINDS = {one.__name__: one for one in (profile, marketprofile, wickra, read, device)}
PACKAGES = ("numpy", "polars", "torch", "pandas", "MarketProfile", "wickra")


def versions() -> dict[str, str]:
    """Return the versions of the relevant packages that are loaded here."""
    modules = {"MarketProfile": "market_profile"}
    return {name: version(name) for name in PACKAGES if modules.get(name, name) in sys.modules}


def main() -> None:
    """Serve jobs until the input ends."""
    kind, file = sys.argv[1:]
    if kind != "read":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.environ.update(dict.fromkeys(THREADS, "1"))
    jobs = KINDS[kind](Path(file))
    for job in jobs.values():
        job()
    python = ".".join(map(str, sys.version_info[:3]))
    print(json.dumps({"jobs": list(jobs), "versions": {"Python": python, **versions()}}), flush=True)
    for line in sys.stdin:
        job = jobs[line.strip()]
        began = time.perf_counter()
        job()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
