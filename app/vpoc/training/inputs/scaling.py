"""The scaling of the network's input columns: fitted on training rows, robust, clipped, saved with the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats, Floats32, Ints

FURTHEST = 5.0
"""Clipping distance from the centre, in units of the size."""
FIT_ROWS = 1 << 17
"""Most rows that a scaling is fitted on, evenly spread: enough for quartiles, and little memory."""
QUARTILES_APART = 1.349
"""Distance between the quartiles of a normal distribution, in standard deviations."""
STILL = 1e-6
"""A size below this, relative to the centre, is only rounding: such a column does not vary."""


@dataclass(frozen=True)
class Scaling:
    """(value - centre) / size, clipped to FURTHEST; all arrays are float32, [columns].

    `centre`: the median.
    `size`: the quartiles' distance / 1.349, which is the standard deviation of a normal distribution. If the quartiles
    are equal, as in a code that is mostly 0: the standard deviation. Infinite for a column that does not vary, so that
    its scaled value is always 0.
    `low`, `high`: the extremes of the rows it was fitted on.

    An unknown value (NaN), of a feature that a file cannot have, becomes 0, which gives the network no information.
    """

    centre: Floats32
    size: Floats32
    low: Floats32
    high: Floats32

    def apply(self, rows: npt.NDArray[Any]) -> Floats32:
        """Return `rows` [rows, columns], scaled; writable float32 rows are scaled in place."""
        scaled: Floats32 = np.require(rows, np.float32, "W")
        # One part at a time, to avoid a copy of all rows.
        for start in range(0, len(scaled), FIT_ROWS):
            part = scaled[start : start + FIT_ROWS]
            np.subtract(part, self.centre, out=part)
            np.divide(part, self.size, out=part)
            np.clip(part, -FURTHEST, FURTHEST, out=part)
            unknown = np.isnan(part)
            if unknown.any():
                part[unknown] = 0
        return scaled

    def outside(self, rows: Floats32) -> Floats:
        """Return the share of the unscaled `rows` [rows, columns] outside the range of the fit, [columns].

        An unknown value counts as outside if the scaling was fitted on known ones.
        """
        missing = np.isnan(rows) & np.isfinite(self.size)
        found: Floats = ((rows < self.low) | (rows > self.high) | missing).mean(axis=0)
        return found

    def is_close(self, other: "Scaling") -> bool:
        """Return whether both scale alike, within the rounding of float32."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return all(np.allclose(mine, its, rtol=1e-5, atol=0) for mine, its in pairs)

    def as_json(self) -> dict[str, list[float | None]]:
        """Return the arrays as plain values; an infinite size as None."""
        arrays = {field.name: getattr(self, field.name).tolist() for field in fields(self)}
        return {name: [None if value == math.inf else value for value in array] for name, array in arrays.items()}

    @staticmethod
    def from_json(document: Mapping[str, Any], columns: int) -> "Scaling":
        """Return the scaling that `as_json` wrote.

        ValueError unless each array has `columns` numbers and the sizes are above 0.
        """
        plain = {field.name: document[field.name] for field in fields(Scaling)}
        plain["size"] = [math.inf if value is None else value for value in plain["size"]]
        arrays = {name: np.array(values, np.float32) for name, values in plain.items()}
        wrong = any(array.shape != (columns,) or np.isnan(array).any() for array in arrays.values())
        if wrong or not (arrays["size"] > 0).all() or not np.isfinite(arrays["centre"]).all():
            raise ValueError("a scaling of other columns, or with numbers that are none")
        return Scaling(**arrays)


def fit_scaling(rows: Floats32, training: Ints) -> Scaling:
    """Return the scaling fitted on the rows `training` [numbers], in order, of the unscaled `rows` [rows, columns].

    Medians and quartiles are values of rows, never interpolated, so that every numpy computes the same. Unknown values
    do not count; a column of unknown values only is taken as constant 0.
    """
    count = len(training)
    chosen = training if count <= FIT_ROWS else training[np.arange(FIT_ROWS) * count // FIT_ROWS]
    columns = np.ascontiguousarray(rows[chosen].T)
    columns[np.isnan(columns).all(axis=1)] = 0
    # Sorting puts unknown values (NaN) last.
    columns.sort(axis=1)
    known = np.count_nonzero(~np.isnan(columns), axis=1)
    place = np.arange(len(columns))
    low, lower, centre, upper, high = (
        columns[place, np.minimum(known * quarter // 4, known - 1)] for quarter in range(5)
    )
    size = (upper - lower).astype(np.float64) / QUARTILES_APART
    spread = np.array([column[:count].astype(np.float64).std() for column, count in zip(columns, known, strict=True)])
    size = np.where(upper > lower, size, spread)
    still = size <= STILL * np.maximum(np.abs(centre), STILL)
    return Scaling(centre, np.where(still, np.inf, size).astype(np.float32), low, high)


def outside_words(scaling: Scaling, rows: Floats32, names: tuple[str, ...]) -> list[str]:
    """Name the columns of the unscaled `rows` with at least 1 % of values outside, the worst first."""
    shares = scaling.outside(rows)
    order = np.argsort(-shares, kind="stable")
    return [f"{names[column]} ({shares[column]:.1%})".replace("%", " %") for column in order if shares[column] >= 0.01]
