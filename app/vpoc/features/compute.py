"""Computes the features of a merged CSV: from the cache if it is valid, in blocks if the file is large."""

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from vpoc.data.bars import Bars
from vpoc.data.cache import cached_bars, write_bars
from vpoc.data.checks.plausibility_gate import plausible_blocks, require_plausible_bars
from vpoc.data.exchange.sessions import split_sessions
from vpoc.data.load import LARGE_BYTES, load_bars, stream_bars
from vpoc.errors import UserError, from_os_error
from vpoc.features.build import all_session_facts, features_of, no_regular_hours, stream_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.feature_set import FeatureSet
from vpoc.features.row_source import RowSource, block_rows, stored_rows
from vpoc.features.session_facts_cache import cached_session_facts, write_session_facts
from vpoc.features.store import read_features, require_same_features
from vpoc.files import sha256_file
from vpoc.profile.facts import concatenated
from vpoc.profile.session_profiles import session_levels
from vpoc.progress import Progress


def compute_features(
    data: Path,
    options: FeatureOptions,
    progress: Progress,
    *,
    cache: Path | None = None,
    digest: Future[str] | None = None,
    vpoc_path: str = "cpu",
    device: str = "cpu",
    accepted: Collection[str] = (),
) -> FeatureSet:
    """Return the features of the merged CSV `data`; for bar rows its bars are cached in the file `cache`, if given.

    For session rows, the facts of the sessions are cached beside it. Session rows of a large file are computed in
    blocks, which need little memory and no cache.

    `digest`: the SHA-256 of `data`, if it is already being computed.
    `vpoc_path`: if not cpu, the levels of all sessions are also computed on `device` along that path.

    UserError as from `load_bars`, for data that is not plausible by a rule which is not `accepted`, and with exit code
    1 when the device's levels differ from the CPU's.
    """
    progress.phase("data")
    try:
        large = data.stat().st_size > LARGE_BYTES
    except OSError as error:
        raise from_os_error(error, data) from error
    if large and options.rows == "session" and vpoc_path == "cpu":
        broken: list[str] = []
        blocks = plausible_blocks(data, stream_bars(data), accepted, broken)
        return replace(stream_features(blocks, options, progress=progress), accepted=tuple(broken))
    # A cache must have only bars that every run accepts.
    kept = None if accepted else cache
    # Session rows need only the facts: use cached bars, but write none.
    facts_alone = options.rows == "session" and vpoc_path == "cpu"
    place = kept.with_suffix("").with_suffix(".session-facts.parquet") if kept and facts_alone else None
    known_faults: tuple[str, ...] = ()
    with ThreadPoolExecutor(1) as pool:
        written: list[Future[None]] = []
        found = cached_session_facts(place, data, digest, options) if place else None
        if found is None:
            bars = cached_bars(kept, data, digest) if kept else None
            if bars is None:
                bars = load_bars(data)
                known_faults = require_plausible_bars(bars, accepted)
                if kept and not place:
                    written.append(pool.submit(write_bars, kept, bars))
            if vpoc_path != "cpu":
                check_device(bars, options, vpoc_path, device, progress)
            days = all_session_facts(bars, options, progress)
            if place:
                written.append(pool.submit(write_session_facts, place, bars, days, options))
        else:
            bars, days = found
        features = replace(features_of(bars, days, options, progress=progress), accepted=known_faults)
        for each in written:
            # The rows are computed: a cache, which only saves time, must not be why they are lost, as on a full disk.
            with suppress(UserError):
                each.result()
        return features


def features_for(
    data: Path,
    stored: Path | None,
    options: FeatureOptions,
    progress: Progress,
    *,
    vpoc_path: str,
    device: str,
    accepted: Collection[str] = (),
) -> FeatureSet:
    """Return the features in the file `stored`, or, without one, compute them as `compute_features` does.

    UserError unless the stored ones were made from `data` with these `options`, and everything that was accepted about
    the data then is `accepted` now.
    """
    if stored is None:
        return compute_features(data, options, progress, vpoc_path=vpoc_path, device=device, accepted=accepted)
    digest = data_digest(data, progress)
    features = read_features(stored)
    require_same_features(stored, features, digest, options, accepted)
    return features


def rows_for(
    data: Path,
    stored: Path | None,
    options: FeatureOptions,
    progress: Progress,
    *,
    vpoc_path: str,
    accepted: Collection[str] = (),
) -> RowSource:
    """Return the bar rows of `features_for`, of which only few are in memory at a time.

    UserError also for another `vpoc_path` than cpu when nothing is stored, because that needs all bars in memory.
    """
    if stored is None:
        if vpoc_path != "cpu":
            raise UserError(
                f"--vpoc-path {vpoc_path} needs all bars in memory, which --chunk-rows avoids; leave out one of the two"
            )
        return block_rows(data, options, progress, accepted=accepted)
    digest = data_digest(data, progress)
    rows = stored_rows(stored)
    require_same_features(stored, rows.features, digest, options, accepted)
    return rows


def data_digest(data: Path, progress: Progress) -> str:
    """Return the SHA-256 of the data, in phase `data`; then enter phase `features`."""
    progress.phase("data")
    digest = sha256_file(data)
    progress.phase("features")
    return digest


def check_device(bars: Bars, options: FeatureOptions, path: str, device: str, progress: Progress) -> None:
    """Compute the levels of all sessions on `device`; UserError, exit code 1, if they differ from the CPU's."""
    from vpoc.device import require_device  # noqa: PLC0415 - imports torch
    from vpoc.profile.device.paths import device_levels  # noqa: PLC0415

    require_device(device)
    sessions = split_sessions(bars, options.close_minute)
    sessions = sessions.take(sessions.stop > sessions.start)
    if not len(sessions):
        raise no_regular_hours(bars.path)
    progress.phase("features", -(-len(sessions) // options.chunk_size))
    found = []
    kind = options.value_area, options.placement
    for part in device_levels(bars, sessions, path, device, options.chunk_size, *kind):
        found.append(part)
        progress.step(len(found), 0.0)
    wanted = session_levels(bars, sessions, options.chunk_size, options.placement, options.value_area)
    got = concatenated(found)
    for name, values in vars(wanted).items():
        wrong = np.flatnonzero(getattr(got, name) != values)
        if len(wrong):
            date = np.datetime64(int(sessions.date[wrong[0]]), "D")
            raise UserError(
                f"{bars.path}: {device} along the path {path} computes another {name} than the CPU in {len(wrong)} of "
                f"{len(sessions)} sessions, first {date}: {getattr(got, name)[wrong[0]]}, not {values[wrong[0]]}; "
                "do not trust this device",
                exit_code=1,
            )
