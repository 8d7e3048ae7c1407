"""Colours and sizes of all pictures."""

from typing import Any

UP_COLOUR, DOWN_COLOUR, NIGHT_COLOUR, CLOSES_COLOUR = "#1b7f79", "#b5403a", "#a9afb8", "#2b3038"
AREA_COLOUR, INSIDE_COLOUR, OUTSIDE_COLOUR = "#eef3fa", "#86a3cf", "#cfd9e8"
VPOC_COLOUR, DEVELOPING_COLOUR, NAKED_COLOUR, BALANCE_COLOUR, NODE_COLOUR = (
    "#e07b00",
    "#7a3e9d",
    "#8c5a2b",
    "#444b55",
    "#24406f",
)
GRID_COLOUR, INK_COLOUR = "#e3e6ea", "#22262c"
NODE_MARK: dict[str, Any] = {"marker": "<", "mec": NODE_COLOUR, "mew": 0.9, "ls": "none"}
DOTS_PER_INCH = 120
POINTS_PER_INCH = 72
SMALL_TEXT = 8
"""Font size, in points."""
