"""Which environment variables may be set in the matrix file."""

import re
from typing import Annotated

from pydantic import AfterValidator

VISIBILITY_VARIABLES = frozenset(
    {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
)

# What the harness sets itself: whoever else did would belie the record, or break the run.
RESERVED_VARIABLES = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "PYTHONPATH", "PYTHONHOME", "OMP_NUM_THREADS"}
    | {"POLARS_MAX_THREADS", "VPOC_DEVICE", "MATRIX_RUN", "MATRIX_DATA", "MATRIX_PROGRESS"}
)

# MAX_ARG_STRLEN of Linux, for NAME=value and what ends it.
MOST_BYTES = 131_072


def settable(variables: dict[str, str]) -> dict[str, str]:
    """Return variables as they are.

    Raises:
        ValueError: where one is no variable, or not one to be set here.
    """
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not a name of a variable")
        if "\0" in value:
            raise ValueError(f"{name} holds a null character, which no variable can")
        if len(f"{name}={value}".encode()) >= MOST_BYTES:
            raise ValueError(f"{name} and its value have {MOST_BYTES} bytes or more, with which nothing can be started")
        if name in RESERVED_VARIABLES:
            raise ValueError(f"{name} is set by the harness; leave it out")
        if name in VISIBILITY_VARIABLES:
            raise ValueError(
                f"{name} chooses devices, which only the executor does; give the preset `devices:` instead"
            )
    return variables


Variables = Annotated[dict[str, str], AfterValidator(settable)]
