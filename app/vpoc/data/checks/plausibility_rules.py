"""The rules of plausible bars, and the messages for a file that breaks one."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

VIX_LOW, VIX_HIGH = 5.0, 200.0
"""Plausible VIX values; since 1990 its closes lie between 9 and 83."""


@dataclass(frozen=True)
class PlausibilityRule:
    """A rule of the gate. `problem`: what is wrong, in words. `advice`: what the user can do about it."""

    name: str
    problem: str
    advice: str


PLAUSIBILITY_RULES = (
    PlausibilityRule(
        "vix_is_price",
        "the VIX is the price of the bars, not a volatility",
        "make the file again with `vpoc merge --vix` and a file of VIX values",
    ),
    PlausibilityRule(
        "vix_range",
        f"a VIX outside {VIX_LOW:.0f} to {VIX_HIGH:.0f}",
        "correct the cell, or empty it with `vpoc check --fix`",
    ),
    PlausibilityRule("price_scale", "prices are of another scale, such as cents", "give index points throughout"),
    PlausibilityRule(
        "bad_print",
        "a price that no bar around it comes near",
        "correct it, or leave the bar out with `vpoc check --fix`",
    ),
    PlausibilityRule("volume_scale", "volume is of another scale, such as x 100", "give contracts throughout"),
    PlausibilityRule("cumulative_volume", "volume adds up from bar to bar", "give the volume of each bar alone"),
    PlausibilityRule(
        "open_close_swapped", "open and close are swapped", "swap the names of the two columns in the header"
    ),
    PlausibilityRule(
        "end_stamps", "the stamps are the END of the bars", "make the file again with `vpoc merge --stamps end`"
    ),
)
PLAUSIBILITY_RULE = {rule.name: rule for rule in PLAUSIBILITY_RULES}
RULE_NAMES = tuple(PLAUSIBILITY_RULE)


@dataclass(frozen=True)
class Implausible:
    """A rule that a file breaks.

    `count`: how often.
    `ts`, `line`: where first, in seconds since 1970 UTC; line 0 if unknown.
    `shown`: how it shows there, in words.
    `gross`: whether the file is refused; otherwise the user only gets a warning.
    """

    rule: PlausibilityRule
    count: int
    ts: int
    line: int
    shown: str
    gross: bool = True

    def at(self, where: Path | str) -> str:
        """Return the error message for the file at `where`."""
        line = f", line {self.line}" if self.line else ""
        advice = f"{self.rule.advice}, or say --accept {self.rule.name}"
        return f"{where}{line}: {stamp_text_of(self.ts)}: {self.rule.problem}: {self.shown}; {advice}"

    def warning(self) -> str:
        """Return the message for a rule that is accepted, or of which little is wrong."""
        line = f"line {self.line}: " if self.line else ""
        return f"{line}{stamp_text_of(self.ts)}: {self.rule.problem}: {self.shown}"


def stamp_text_of(ts: int) -> str:
    """Return the stamp of a merged CSV for seconds since 1970 UTC."""
    return f"{np.datetime64(ts, 's')}Z"
