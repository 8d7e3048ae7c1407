"""Samples on the disk, for data larger than memory."""

import ctypes
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from vpoc.errors import UserError, from_os_error
from vpoc.features.row_source import RowSource
from vpoc.features.table import NAMES
from vpoc.files import require_writable
from vpoc.progress import Progress
from vpoc.training.inputs.samples import (
    MIN_LABELLED,
    PART,
    Dates,
    Samples,
    Split,
    inputs_of,
    labels_of,
    require_horizon,
    split_samples,
)
from vpoc.training.inputs.scaling import Scaling, fit_scaling

SAMPLE_COLUMNS: dict[str, np.dtype[Any]] = {
    "ends": np.dtype(np.int64),
    "labels": np.dtype(np.float32),
    "weights": np.dtype(np.float32),
    "dates": np.dtype(np.int32),
}
"""The type of each column of samples."""
INPUT_ROW = np.dtype((np.float32, (len(NAMES),)))
"""The type of a row of inputs."""


class SampleFile:
    """The samples of a run, on disk, for one target and for models with windows of these sizes.

    They are memory-mapped from files without a name, which disappear when no process has them open, however the process
    ends. Rows are written once for all models.
    """

    def __init__(self, rows: RowSource, target: str, windows: Iterable[int], *, inner: bool = False) -> None:
        # The scaling is fitted on single rows, whatever the models' windows are.
        self.target, self.windows, self.inner = target, sorted({1, *windows}), inner
        self._scaling: Scaling | None = None
        self._rows: RowSource | None = rows
        self._found: dict[int, tuple[Samples, Dates]] = {}

    def write(self, folder: Path, progress: Progress) -> None:
        """Write the samples to files in `folder`, which is created if it is missing, unless they are written already.

        UserError when the disk has no room, or no label is possible.
        """
        if self._rows is None:
            return
        require_horizon(self._rows.features, self.target)
        require_writable(folder)
        self._require_room(folder, self._rows.count)
        try:
            with _columns(folder, {"inputs": INPUT_ROW}) as rows, ExitStack() as stack:
                samples = {window: stack.enter_context(_columns(folder, SAMPLE_COLUMNS)) for window in self.windows}
                dates: dict[int, list[Dates]] = {window: [] for window in self.windows}
                before = 0
                for frame in self._rows.frames(progress):
                    _append(rows["inputs"], inputs_of(frame), INPUT_ROW.base)
                    for window in self.windows:
                        found = labels_of(frame, self.target, window, before)
                        dates[window].append(np.unique(found.dates))
                        for name, stream in samples[window].items():
                            _append(stream, getattr(found, name), SAMPLE_COLUMNS[name])
                    before += frame.height
                fitted_on, inputs = self.windows[0], _mapped(rows["inputs"], INPUT_ROW)
                for window in self.windows:
                    columns = {name: _mapped(stream, SAMPLE_COLUMNS[name]) for name, stream in samples[window].items()}
                    known = np.concatenate([np.empty(0, np.int32), *dates[window]])
                    self._found[window] = Samples(inputs=inputs, **columns, window=window), known
                if len(self._found[fitted_on][1]) >= MIN_LABELLED:
                    self._scaling = fit_scaling(inputs, self._parts(fitted_on)[0].ends)
                    _scale(rows["inputs"], self._scaling)
                    inputs = _mapped(rows["inputs"], INPUT_ROW)
                    self._found = {
                        w: (replace(samples, inputs=inputs), known) for w, (samples, known) in self._found.items()
                    }
        except OSError as error:
            raise from_os_error(error, folder) from error
        # The row source is no longer needed, and it is large.
        self._rows = None
        _trim_heap()

    def split(self, window: int) -> Split:
        """Return the same as `vpoc.training.inputs.samples.split`."""
        parts = self._parts(window)
        assert self._scaling is not None
        return Split(*parts, self._scaling)

    def _parts(self, window: int) -> tuple[Samples, Samples | None, Samples]:
        samples, dates = self._found[window]
        return split_samples(samples, dates, self.target, purge=False, inner=self.inner)

    def _require_room(self, folder: Path, rows: int) -> None:
        each = INPUT_ROW.itemsize + len(self.windows) * sum(kind.itemsize for kind in SAMPLE_COLUMNS.values())
        needed, free = rows * each, shutil.disk_usage(folder).free
        if needed > free:
            raise UserError(
                f"{folder}: --chunk-rows puts {rows} rows on the disk, {needed / 1e9:.1f} GB, and "
                f"{free / 1e9:.1f} GB are free; free some space or choose another folder"
            )


@contextmanager
def _columns(folder: Path, kinds: Iterable[str]) -> Iterator[dict[str, IO[bytes]]]:
    """Open a new file for each name in `kinds`."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(tempfile.TemporaryFile(dir=folder)) for name in kinds}


def _trim_heap() -> None:
    """Return freed small blocks to the system, because the C library keeps them, the more the longer the file was."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _append(stream: IO[bytes], values: Any, kind: np.dtype[Any]) -> None:
    stream.write(np.ascontiguousarray(values, kind).data)


def _scale(stream: IO[bytes], scaling: Scaling) -> None:
    """Scale all rows in `stream`, one part at a time."""
    stream.flush()
    size = stream.tell()
    part = np.empty(PART, INPUT_ROW)
    for start in range(0, size, part.nbytes):
        stream.seek(start)
        rows = part[: (min(size - start, part.nbytes)) // INPUT_ROW.itemsize]
        stream.readinto(rows.data)  # type: ignore[attr-defined]
        stream.seek(start)
        stream.write(scaling.apply(rows).data)
    stream.seek(size)


def _mapped(stream: IO[bytes], kind: np.dtype[Any]) -> Any:
    """Return all values in `stream`, memory-mapped.

    Changes to them do not reach the file. The array outlives the stream.
    """
    stream.flush()
    if not stream.tell():
        return np.empty(0, kind)
    # Copy-on-write instead of read-only, because torch warns about read-only arrays.
    return np.memmap(stream, kind, "c")
