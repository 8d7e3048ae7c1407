import re
from itertools import pairwise

from harness.report.shades import scale, shade


def light(colour: str) -> float:
    """Relative luminance after WCAG 2.1."""
    values = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def parts(share: float) -> tuple[str, str]:
    ground, text = re.findall(r"#[0-9a-f]{6}", shade(share))
    return ground, text


def test_more_is_always_lighter_so_that_it_can_be_read_in_grey() -> None:
    grounds = [light(parts(n / 100)[0]) for n in range(101)]
    assert all(a < b for a, b in pairwise(grounds))
    assert light(parts(1)[0]) - light(parts(0)[0]) > 0.7


def test_the_text_on_every_colour_can_be_read() -> None:
    for n in range(101):
        low, high = sorted(map(light, parts(n / 100)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, n


def test_the_scale_shows_the_colours_of_the_places() -> None:
    colours = [tuple(map(int, one)) for one in re.findall(r"rgb\((\d+), (\d+), (\d+)\)", scale())]
    assert ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours] == [parts(n / 10)[0] for n in range(11)]
