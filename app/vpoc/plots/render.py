"""Renders a figure to the bytes of a file, which are the same on every machine with the same matplotlib."""

import io
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpoc.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "path.simplify": False,
    # A symbol, or the name of a file, may have two dollar signs.
    "text.parse_math": False,
    # Text as outlines, so that a viewer needs no font; a fixed salt for identifiers that do not change between runs.
    "svg.fonttype": "path",
    "svg.hashsalt": "vpoc",
}


def picture_format(output: Path) -> str:
    """Return `png` or `svg`, by the suffix of `output`; UserError for any other."""
    if output.suffix.lower() not in FORMATS:
        raise UserError(
            f"{output}: the name must end in {' or '.join(FORMATS)}, which says what kind of picture to write"
        )
    return output.suffix.lower()[1:]


@contextmanager
def matplotlib_of_its_own(folder: Path) -> Iterator[None]:
    """Import matplotlib without anything of the user's: with its own fonts, no configuration, no backend, no cache.

    `folder` has its cache meanwhile; nothing else has to be writable. UserError if matplotlib is not installed.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".vpoc-plot-") as cache:
        with _environment(MPLCONFIGDIR=cache, MPLBACKEND="agg", MPL_IGNORE_SYSTEM_FONTS="1"):
            # Hide its warnings about configuration files, which are not used here.
            logging.getLogger("matplotlib").setLevel(logging.ERROR)
            try:
                import matplotlib as mpl  # noqa: PLC0415
                import matplotlib.font_manager  # noqa: PLC0415
            except ImportError as error:
                raise UserError(f"vpoc plot needs matplotlib ({error}); pip install matplotlib") from error
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(SETTINGS)
            yield


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def to_bytes(figure: "Figure", kind: str, title: str) -> bytes:
    """Return `figure` as a file of `kind` (`png` or `svg`) with `title` and without a date."""
    # Leave out matplotlib's version, which would make equal pictures differ.
    program = {"Software": None} if kind == "png" else {"Creator": "vpoc plot", "Date": None}
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi="figure", metadata={"Title": title, **program})
    return stream.getvalue()
