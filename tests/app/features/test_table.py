"""Tests of the table that defines every feature."""

import pytest
from reference_pages import PAGES

from vpoc.features.table import BY_RANGE, FEATURES, NAMES

# The order of the specification, which the files, the models and the reference page share.
ORDER = """vpoc_dist vah_dist val_dist va_width va_width_frac vpoc_pos close_pos close_vs_va vpoc_share va_share
vpoc_chg1 vpoc_chg5 va_overlap va_relation open_vs_prior_va gap prior_vpoc_hit comp5_dist comp20_dist naked_n naked_up
naked_dn naked_age naked_imb vwap_dist prof_std prof_skew prof_kurt prof_entropy shape_pb hvn_n lvn_n tpoc_dist
vpoc_tpoc single_share tail_hi tail_lo poor_hl ib_range ib_frac ext_up ext_dn dvpoc_age log_vol_rel on_vol_share
delta_proxy
delta_at_vpoc on_range_frac vix vix_chg vix_z20 range_to_expected_move adr20 ret1"""

# The sources, each with the features that it defines.
SOURCES = {
    "Dalton, Mind over Markets: value area, point of control": """vpoc_dist vah_dist val_dist va_width va_width_frac
close_vs_va open_vs_prior_va comp5_dist comp20_dist shape_pb dvpoc_age""",
    "position in the range (stochastic %K)": "vpoc_pos close_pos",
    "concentration of volume at price": "vpoc_share va_share",
    "value migration between sessions": "vpoc_chg1 vpoc_chg5 va_overlap va_relation",
    "opening gap": "gap",
    "untested levels of earlier sessions": "prior_vpoc_hit naked_n naked_up naked_dn naked_age naked_imb",
    "moments of the volume at price": "vwap_dist prof_std prof_skew prof_kurt",
    "Shannon entropy of the volume at price": "prof_entropy",
    "high and low volume nodes of the smoothed profile": "hvn_n lvn_n",
    "Dalton, Mind over Markets: TPO profile": "tpoc_dist vpoc_tpoc single_share tail_hi tail_lo poor_hl",
    "Steidlmayer: initial balance and range extension": "ib_range ib_frac ext_up ext_dn",
    "volume against its habit": "log_vol_rel on_vol_share",
    "volume by direction of the bar; a proxy, not order flow": "delta_proxy delta_at_vpoc",
    "overnight range against the day's": "on_range_frac",
    "CBOE VIX": "vix vix_chg vix_z20 range_to_expected_move",
    "average daily range (ADR): without gaps and smoothing, unlike Wilder's ATR": "adr20",
    "log return": "ret1",
}


def test_there_are_54_in_the_order_of_the_specification():
    assert tuple(ORDER.split()) == NAMES
    assert len(set(NAMES)) == 54


def test_every_feature_says_what_it_is():
    for feature in FEATURES:
        assert feature.formula
    assert len({feature.formula for feature in FEATURES}) == len(FEATURES), "a formula is copied from another feature"
    # Only features in ticks are divided by the range.
    units = {"ticks", "ratio", "code", "count", "minutes", "sessions", "points"}
    assert {feature.unit for feature in FEATURES} == units


def test_a_features_source_is_its_own_and_not_its_neighbours():
    assert {feature.name: feature.source for feature in FEATURES} == {
        name: source for source, names in SOURCES.items() for name in names.split()
    }


def test_ticks_but_the_range_itself_are_divided_by_the_range():
    assert {feature.name for feature in FEATURES if feature.unit == "ticks"} - {"adr20"} == BY_RANGE
    assert len(BY_RANGE) == 20


@pytest.mark.parametrize(("page", "made"), PAGES.items(), ids=lambda one: getattr(one, "name", ""))
def test_a_reference_page_is_what_the_code_says(page, made):
    assert page.read_text(encoding="utf-8") == made(), "run `make docs`"
