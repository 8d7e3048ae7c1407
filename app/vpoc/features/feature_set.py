"""The rows of features, and their facts."""

from dataclasses import dataclass

import polars as pl

from vpoc.features.feature_options import FeatureOptions
from vpoc.features.market import UNKNOWN_MARKET, Market
from vpoc.features.table import NAMES


@dataclass(frozen=True)
class FeatureSet:
    """`frame` has one row per session or RTH bar; the other fields say what it was made from, and what was left out.

    `sessions_total`: sessions with regular hours in the file.
    `sessions_used`: sessions that have rows.
    `left_out`: the number of sessions without rows, by the first applicable reason; its `rows_without_vix` counts rows.
    `market`: the market of the data.
    `accepted`: rules of the gate that the data breaks and that were accepted.
    `smaller_kept`: as in Bars.
    `rolls_sha256`: SHA-256 of the file that `options.rolls` names; empty for a word.
    """

    frame: pl.DataFrame
    options: FeatureOptions
    data_sha256: str
    data_rows: int
    bar_seconds: int
    sessions_total: int
    sessions_used: int
    left_out: dict[str, int]
    market: Market = UNKNOWN_MARKET
    accepted: tuple[str, ...] = ()
    smaller_kept: tuple[str, ...] = ()
    rolls_sha256: str = ""

    def summary(self) -> str:
        """Return the number of sessions used, why others were not, and the notes, as part of a sentence."""
        reasons = [f"{count} {reason.replace('_', ' ')}" for reason, count in self.left_out.items() if count]
        used = f"{self.sessions_used} of {self.sessions_total} sessions"
        return "; ".join([used + (f" ({', '.join(reasons)})" if reasons else ""), *self.notes()])

    def notes(self) -> list[str]:
        """Return what the user should know about the rows, each as part of a sentence; empty for sound data."""
        rows = self.frame.height
        nulls = {name: self.frame[name].null_count() for name in NAMES if name in self.frame.columns}
        absent = [f"{name} in {count} rows" if count < rows else name for name, count in nulls.items() if count]
        smaller = self.smaller_kept
        found = {
            f"missing, for want of bars outside regular hours: {', '.join(absent)}": absent,
            f"accepted although not plausible: {', '.join(self.accepted)}": self.accepted,
            f"a contract that traded less than another in {len(smaller)} session(s): {''.join(smaller[:1])}": smaller,
        }
        return [note for note, about in found.items() if about]
