"""Colours for a share from 0 to 1, on a scale that can be read in grey and by colour-blind users. Pure."""

from itertools import pairwise

# Cividis at every tenth (Nunez, Anderton and Renslow 2018, PLOS ONE 13(7)); its lightness rises evenly.
CIVIDIS = (
    (0, 34, 78), (16, 51, 109), (51, 69, 109), (79, 87, 109), (102, 105, 113), (125, 124, 118),
    (149, 143, 118), (174, 163, 113), (201, 184, 101), (228, 207, 82), (254, 232, 56),
)  # fmt: skip
# Text is white or black, whichever contrasts more; the contrast is then at least 4.5 on any colour.
DARK, LIGHT = "#000000", "#ffffff"
EVEN = 0.179
# WCAG: below this value a colour component is proportional to its linear light.
LINEAR = 0.03928


def shade(share: float) -> str:
    """Return the CSS of a place with a share from 0 to 1: its colour, and a readable text colour."""
    red, green, blue = _colour(share)
    text = LIGHT if _luminance((red, green, blue)) < EVEN else DARK
    return f"background: #{red:02x}{green:02x}{blue:02x}; color: {text}"


def scale() -> str:
    """Return the CSS of a bar that shows the whole scale, from left to right."""
    return f"background: linear-gradient(to right, {', '.join(f'rgb{colour}' for colour in CIVIDIS)})"


def _colour(share: float) -> tuple[int, int, int]:
    at = min(max(share, 0.0), 1.0) * (len(CIVIDIS) - 1)
    before = min(int(at), len(CIVIDIS) - 2)
    low, high = list(pairwise(CIVIDIS))[before]
    red, green, blue = (round(a + (b - a) * (at - before)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _luminance(colour: tuple[int, int, int]) -> float:
    """Return the relative luminance, as WCAG 2.1 defines it."""
    parts = (value / 255 for value in colour)
    red, green, blue = (one / 12.92 if one <= LINEAR else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
