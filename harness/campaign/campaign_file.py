"""The values in the file of a campaign, which whoever shares its folder may have written."""

from typing import Any

from harness.base.files.json_bounds import load_json

# A run takes three.
MOST_VALUES = 1 << 18


def parse_campaign(content: bytes) -> Any:
    """Return the values of a campaign's file; raises ValueError when it is no JSON, or beyond what one may hold."""
    return load_json(content, MOST_VALUES)
