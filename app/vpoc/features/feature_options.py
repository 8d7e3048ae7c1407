"""The options of features."""

from dataclasses import dataclass

RTH_CLOSES = {"16:00": 960, "16:15": 975}
"""The allowed ends of regular hours, as New York minutes."""
CHOICES = {
    "as_of": ("close", "open"),
    "placement": ("uniform", "close", "typical", "ticks"),
    "value_area": ("two_row", "one_row"),
}
"""The allowed words of each option."""


@dataclass(frozen=True)
class FeatureOptions:
    """The options of `vpoc features`; the command's help explains each."""

    rows: str = "bar"
    as_of: str = "close"
    lookback: int = 60
    data_fraction: float = 1.0
    placement: str = "uniform"
    value_area: str = "two_row"
    rth_close: str = "16:00"
    rolls: str = "auto"
    chunk_size: int = 64

    @property
    def close_minute(self) -> int:
        """New York minute at which regular hours end."""
        return RTH_CLOSES[self.rth_close]
