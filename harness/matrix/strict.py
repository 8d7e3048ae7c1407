"""Base class and types for values of the matrix file, which refuse unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Reason = Annotated[str, Field(min_length=10)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
# A name of a cell's parts, which paths contain; those of variants have more characters than a matrix file gives.
PathPart = Annotated[str, Field(pattern=r"^[^/]*$")]
# A base image becomes a line of a Dockerfile.
ImageName = Annotated[str, Field(pattern=r"^\S+$")]


class Strict(BaseModel):
    """Frozen values of a file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
