"""Parses the file of a campaign, which any user who shares its folder may have written."""

from typing import Any

from harness.base.files.json_bounds import load_json

# Most values in a campaign's file; a run takes three.
MOST_VALUES = 1 << 18


def parse_campaign(content: bytes) -> Any:
    """Return the values of a campaign's file; raise ValueError if it is not JSON, or exceeds its bounds."""
    return load_json(content, MOST_VALUES)
