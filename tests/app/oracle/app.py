"""The app's features for a market or for the real 5-minute file, and the bars of that file for the oracle."""

import csv
import datetime as dt
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from oracle.market import market_csv
from oracle.profile import Bar

from vpoc.data.load import load_bars
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions


def built(known, rows, as_of="close", **options):
    """Return the frame that the app computes for the market `known`, which it reads from a CSV."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "merged.csv"
        path.write_text(market_csv(known.bars))
        options = {"rolls": "auto" if known.bars[0].symbol else "none"} | options
        options |= {"lookback": known.lookback, "placement": known.placement, "value_area": known.value_area}
        return frame_of(path, rows, as_of, **options)


def frame_of(path, rows, as_of="close", **options):
    """Return the features of a merged CSV."""
    return build_features(load_bars(path), FeatureOptions(rows=rows, as_of=as_of, **options), fewest=1).frame


def merged_2026(real_data, tmp_path_factory):
    """Return the path of es-5min-2026.csv, merged with the daily VIX by `vpoc merge`."""
    bars, vix = real_data("es-5min-2026.csv"), real_data("vix-daily.csv")
    merged = tmp_path_factory.getbasetemp() / "es-5min-2026-merged.csv"
    if not merged.exists():
        command = [sys.executable, "-m", "vpoc", "merge", "--bars", bars, "--vix", vix, "--output", merged]
        subprocess.run(command, check=True, capture_output=True)
    return merged


@cache
def read_merged(path):
    """Return the bars of a merged CSV."""
    bars = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            ts = int(dt.datetime.fromisoformat(row["ts"]).timestamp())
            prices = [float(row[name]) * 4 for name in ("open", "high", "low", "close")]
            assert all(price == int(price) for price in prices)
            vix = float(row["vix"]) if row["vix"] else None
            bars.append(Bar(ts, *map(int, prices), int(row["volume"]), vix))
    return bars
