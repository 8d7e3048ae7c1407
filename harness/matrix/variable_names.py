"""Checks which environment variables the matrix file may set."""

import re
from typing import Annotated

from pydantic import AfterValidator

VISIBILITY_VARIABLES = frozenset(
    {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
)

# Variables that the harness sets itself; setting them elsewhere would falsify the record or break the run.
RESERVED_VARIABLES = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "PYTHONPATH", "PYTHONHOME", "OMP_NUM_THREADS"}
    | {"POLARS_MAX_THREADS", "VPOC_DEVICE", "MATRIX_RUN", "MATRIX_DATA", "MATRIX_PROGRESS"}
)

# Most bytes of all NAME=value together, with their terminating null bytes: Linux's MAX_ARG_STRLEN, for each of them.
# Every record repeats them.
MOST_BYTES = 131_072


def check_settable(variables: dict[str, str]) -> dict[str, str]:
    """Check variables, and return them unchanged.

    Raises:
        ValueError: when a name or value is invalid, or the variable may not be set in the matrix file.
    """
    if sum(len(f"{name}={value}\0".encode()) for name, value in variables.items()) > MOST_BYTES:
        raise ValueError(f"they have more than {MOST_BYTES} bytes together, and every record repeats them")
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not a name of a variable")
        if "\0" in value:
            raise ValueError(f"{name} holds a null character, which no variable can")
        if "\n" in value or "\r" in value:
            raise ValueError(f"{name} holds the end of a line, which no image can set")
        if name in RESERVED_VARIABLES:
            raise ValueError(f"{name} is set by the harness; leave it out")
        if name in VISIBILITY_VARIABLES:
            raise ValueError(
                f"{name} chooses devices, which only the executor does; give the preset `devices:` instead"
            )
    return variables


Variables = Annotated[dict[str, str], AfterValidator(check_settable)]
