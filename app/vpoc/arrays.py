"""Types of numpy arrays; docstrings give their shapes, such as [rows]."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.integer[Any]]
"""Integers of a type that is chosen by their largest value."""
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
