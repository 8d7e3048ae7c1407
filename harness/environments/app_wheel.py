"""Builds the app as a wheel: the same bytes for the same source and compiler, on every machine."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from flit_core.wheel import WheelBuilder

from harness.base.paths import APP
from harness.environments.compiled_kernel import PLATFORM, place_kernel
from harness.environments.environment import NOT_SOURCE

# Flit writes this time into the app's wheel, so that the same source gives the same bytes.
SOURCE_DATE_EPOCH = "1700000000"


def app_wheel(folder: Path) -> Path:
    """Return the app as a wheel in a folder; the same source and compiler give the same bytes."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = SOURCE_DATE_EPOCH
    try:
        with tempfile.TemporaryDirectory() as place:
            app = Path(place) / "app"
            shutil.copytree(APP, app, ignore=NOT_SOURCE)
            builder = PlatformWheel if place_kernel(app) else WheelBuilder
            made = Path(place) / "wheel"
            with made.open("wb") as stream:
                wheel = builder.from_ini_path(app / "pyproject.toml", stream)
                wheel.build()
            return Path(shutil.move(made, folder / wheel.wheel_filename))
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]
        else:
            os.environ["SOURCE_DATE_EPOCH"] = before


class PlatformWheel(WheelBuilder):  # type: ignore[misc]
    """Builds a wheel that holds a library, and therefore names the platform that it is for."""

    @property
    def wheel_filename(self) -> str:
        """The name of the wheel, with the platform."""
        return str(super().wheel_filename).replace("-any.whl", f"-{PLATFORM}.whl")

    @contextmanager
    def _write_to_zip(self, rel_path: str, mode: int = 0o644) -> Iterator[StringIO]:
        with super()._write_to_zip(rel_path, mode) as stream:
            yield stream
            if rel_path.endswith(".dist-info/WHEEL"):
                text = stream.getvalue().replace("-any\n", f"-{PLATFORM}\n").replace("Purelib: true", "Purelib: false")
                stream.seek(0)
                stream.truncate()
                stream.write(text)
