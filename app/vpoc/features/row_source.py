"""Bar rows of files that are larger than memory, read a few sessions at a time."""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.bars import Bars
from vpoc.data.checks.plausibility_gate import plausible_blocks
from vpoc.data.load import stream_bars
from vpoc.features.build import bar_rows, facts_of_blocks, feature_set, select_rows, sessions_at_a_time
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.feature_set import FeatureSet
from vpoc.features.session_facts import SessionFacts
from vpoc.features.store import read_facts
from vpoc.files import changed_while_read
from vpoc.profile.session_profiles import session_chunks
from vpoc.progress import Progress

ROW_BLOCK_BYTES = 1 << 22
"""Bytes of fifty sessions of minutes; with much more, the bars would take more memory than everything else."""
SLICE_ROWS = 1 << 15


@dataclass(frozen=True)
class BlockRows:
    """Rows that are computed from the bars of a merged CSV, which is read again in blocks.

    `features`: the facts of all rows, whose frame has none. `count`: how many rows there are.
    `days`: all sessions; their rows are those of the block a session is in. `blocks`: bars and sessions of each.
    """

    data: Path
    features: FeatureSet
    count: int
    days: SessionFacts
    rolls: Ints
    kept: Ints
    blocks: tuple[tuple[int, int], ...]

    def frames(self, progress: Progress) -> Iterator[pl.DataFrame]:
        """The rows in order, each frame those of whole sessions, with the columns of a FeatureSet; none is empty.

        UserError when the file is not what it was any more.
        """
        options, done, before = self.features.options, 0, 0
        progress.phase("features", len(self.kept))
        blocks = stream_bars(self.data, ROW_BLOCK_BYTES)
        for length, count in self.blocks:
            bars = next(blocks, None)
            if bars is None or len(bars) != length:
                raise changed_while_read(self.data)
            used = self.kept[(self.kept >= before) & (self.kept < before + count)]
            before += count
            for chunk in session_chunks(self.days.sessions.take(used), sessions_at_a_time(bars, options)):
                started = time.monotonic()
                frame = bar_rows(bars, self.days, self.rolls, chunk, options).filter(pl.col("vix").is_not_nan())
                done += len(chunk)
                progress.step(done, time.monotonic() - started)
                if frame.height:
                    yield frame
        if bars is None or bars.sha256 != self.features.data_sha256:
            raise changed_while_read(self.data)


def block_rows(data: Path, options: FeatureOptions, progress: Progress, accepted: Collection[str] = ()) -> BlockRows:
    """Return the bar rows of the merged CSV `data`, the same as those of `build_features`.

    UserError as from `build_features`, and for data that is not plausible by a rule which is not `accepted`.
    """
    progress.phase("data")
    broken: list[str] = []
    blocks = plausible_blocks(data, stream_bars(data, ROW_BLOCK_BYTES), accepted, broken)
    counts: list[tuple[int, int]] = []
    known: list[Ints] = []

    def look(bars: Bars, part: SessionFacts | None) -> None:
        counts.append((len(bars), 0 if part is None else len(part)))
        if part is not None:
            seen = np.concatenate([[0], np.cumsum(~np.isnan(bars.vix))])
            known.append(seen[part.sessions.stop] - seen[part.sessions.start])

    bars, days = facts_of_blocks(blocks, options, progress, look)
    rolls, found, kept = select_rows(bars, days, options)
    with_vix = np.concatenate(known)[kept]
    rows, all_rows = int(with_vix.sum()), int((days.sessions.stop - days.sessions.start)[kept].sum())
    dates = days.sessions.date[kept][with_vix > 0]
    features = feature_set(pl.DataFrame(), bars, days, found, options, dates, all_rows - rows, tuple(broken))
    return BlockRows(data, features, rows, days, rolls, kept, tuple(counts))


@dataclass(frozen=True)
class StoredRows:
    """Rows of a file that `vpoc features` wrote, as those of BlockRows."""

    path: Path
    features: FeatureSet
    count: int

    def frames(self, progress: Progress) -> Iterator[pl.DataFrame]:
        """As BlockRows.frames."""
        progress.phase("features", self.count)
        file = pl.scan_parquet(self.path)
        left: pl.DataFrame | None = None
        for start in range(0, self.count, SLICE_ROWS):
            started = time.monotonic()
            part = file.slice(start, SLICE_ROWS).collect()
            part = part if left is None else pl.concat([left, part])
            done = min(start + SLICE_ROWS, self.count)
            last = part["trade_date"] == part["trade_date"][-1]
            # The last session may continue in the next part.
            whole = int(last.arg_max() or 0) if done < self.count else part.height
            left = part[whole:]
            progress.step(done, time.monotonic() - started)
            if whole:
                yield part[:whole]


RowSource = BlockRows | StoredRows
"""Bar rows, of which only a few are in memory."""


def stored_rows(path: Path) -> StoredRows:
    """Return the bar rows in `path`, whose bytes are checked to be unchanged; UserError as from `read_features`."""
    features = read_facts(path)
    return StoredRows(path, features, pl.scan_parquet(path).select(pl.len()).collect().item())
