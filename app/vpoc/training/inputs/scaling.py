"""The scaling of the columns that enter a network: fitted on training rows, robust, clipped, kept with the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats, Floats32, Ints

FURTHEST = 5.0
"""Sizes from the centre beyond which a value counts as no further away."""
FIT_ROWS = 1 << 17
"""Rows it is fitted on, evenly spread, where there are more: enough for quartiles, and little memory."""
QUARTILES_APART = 1.349
"""Standard deviations of a normal distribution between its quartiles."""
STILL = 1e-6
"""A size below it, relative to the centre, is rounding: such a column does not vary."""


@dataclass(frozen=True)
class Scaling:
    """(value - centre) / size, no further than FURTHEST from 0; all arrays are float32, [columns].

    `centre`: the median. `size`: the quartiles' distance / 1.349, which is the standard deviation of a normal
    distribution; where the quartiles are equal, as of a code that is mostly 0, the standard deviation; infinite for a
    column that does not vary, which is then always 0. `low`, `high`: the extremes of the rows it was fitted on.
    A value that is not known (NaN), of a feature that a file cannot have, becomes 0: it tells a network nothing.
    """

    centre: Floats32
    size: Floats32
    low: Floats32
    high: Floats32

    def apply(self, rows: npt.NDArray[Any]) -> Floats32:
        """Return `rows` [rows, columns], scaled; float32 ones that can be written to are scaled where they are."""
        scaled: Floats32 = np.require(rows, np.float32, "W")
        # By parts, so that no copy of all is made.
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
        """Share of the unscaled `rows` [rows, columns] that lie outside what it was fitted on, [columns].

        Those that are not known do, where it was fitted on others.
        """
        missing = np.isnan(rows) & np.isfinite(self.size)
        found: Floats = ((rows < self.low) | (rows > self.high) | missing).mean(axis=0)
        return found

    def is_close(self, other: "Scaling") -> bool:
        """Return whether both do the same, as far as float32 is rounded."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return all(np.allclose(mine, its, rtol=1e-5, atol=0) for mine, its in pairs)

    def as_json(self) -> dict[str, list[float | None]]:
        """The arrays as plain values; an infinite size as None."""
        arrays = {field.name: getattr(self, field.name).tolist() for field in fields(self)}
        return {name: [None if value == math.inf else value for value in array] for name, array in arrays.items()}

    @staticmethod
    def from_json(document: Mapping[str, Any], columns: int) -> "Scaling":
        """The inverse of `as_json`; ValueError unless each array has `columns` numbers, and the sizes are above 0."""
        plain = {field.name: document[field.name] for field in fields(Scaling)}
        plain["size"] = [math.inf if value is None else value for value in plain["size"]]
        arrays = {name: np.array(values, np.float32) for name, values in plain.items()}
        wrong = any(array.shape != (columns,) or np.isnan(array).any() for array in arrays.values())
        if wrong or not (arrays["size"] > 0).all() or not np.isfinite(arrays["centre"]).all():
            raise ValueError("a scaling of other columns, or with numbers that are none")
        return Scaling(**arrays)


def fit_scaling(rows: Floats32, training: Ints) -> Scaling:
    """The scaling by the rows `training` [numbers], in order, of the unscaled `rows` [rows, columns].

    Medians and quartiles are values of rows, never between two, so that every numpy computes the same. What is not
    known does not count; a column of which nothing is does not vary, about 0.
    """
    count = len(training)
    chosen = training if count <= FIT_ROWS else training[np.arange(FIT_ROWS) * count // FIT_ROWS]
    columns = np.ascontiguousarray(rows[chosen].T)
    columns[np.isnan(columns).all(axis=1)] = 0
    # Those that are not known come last.
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
    """Name the columns of the unscaled `rows` of which at least 1 % is outside, the worst first."""
    shares = scaling.outside(rows)
    order = np.argsort(-shares, kind="stable")
    return [f"{names[column]} ({shares[column]:.1%})".replace("%", " %") for column in order if shares[column] >= 0.01]
