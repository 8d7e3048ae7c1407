"""What every JSON file of this project has in common."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class File(BaseModel):
    """What is part of a file, or a file: every key is known."""

    # JSON has no word for NaN: an app that computed one is quoted with a string, which reads back as NaN.
    # Most commands use a few of the files: what checks the others is not made for them.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", defer_build=True)


class Versioned(File):
    """A file of its own: says which version of its layout it follows."""

    version: Literal[1] = Field(1, alias="schema")

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
