import io

import numpy as np
import polars as pl
import pytest

from vpoc.data.bars import load_bars
from vpoc.data.mix import bits_set, words
from vpoc.data.sessions import split_sessions
from vpoc.data.synth import BARS, synthetic_csv
from vpoc.files import sha256


def test_the_bytes_are_the_same_everywhere():
    assert sha256(synthetic_csv(3, 7)) == "928846aed3e744cb53a9bc7c354bf6fb2bdff1d524f1a57df2a32b0d30dceac6"


def test_another_seed_gives_other_prices():
    assert synthetic_csv(1, 7) != synthetic_csv(1, 8)


def test_fewer_sessions_are_a_prefix_of_more():
    assert synthetic_csv(3, 7).startswith(synthetic_csv(2, 7))


def test_it_has_the_shape_of_real_sessions(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes(synthetic_csv(30, 7))
    bars = load_bars(path)
    sessions = split_sessions(bars)
    assert len(bars) == 30 * BARS
    assert len(sessions) == 30
    assert sessions.complete.all()
    assert np.is_busday(sessions.date.astype("datetime64[D]")).all()
    rth = [slice(a, b) for a, b in zip(sessions.start, sessions.stop, strict=True)]
    ranges = [bars.high[part].max() - bars.low[part].min() for part in rth]
    assert 150 <= np.median(ranges) <= 300
    volume = np.median([bars.volume[part] for part in rth], axis=0)
    assert volume.argmax() == 389, "the closing bar is the biggest"
    assert volume[:30].mean() > 2 * volume[180:210].mean() < volume[-31:-1].mean()


def test_vix_is_null_until_it_is_quoted():
    frame = pl.read_csv(io.BytesIO(synthetic_csv(1, 7)), schema_overrides={"vix": pl.Float64})
    first_rth = 15 * 60 + 30
    assert frame["vix"][:first_rth].null_count() == first_rth
    assert frame["vix"][first_rth:].null_count() == 0


def test_words_are_splitmix64_with_a_mixed_start():
    # Reference values of splitmix64 for seed 0 (Vigna, splitmix64.c): the start mixes to 0.
    assert words(0, 0, 2).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("value", [0, 1, 0xFFFF, 2**63, 2**64 - 1, 0x123456789ABCDEF])
def test_bits_set(value):
    assert bits_set(np.array([value], np.uint64)).tolist() == [value.bit_count()]
