"""The clusters that runs can be carried to, as listed in the matrix file under `hosts:`."""

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from harness.matrix.strict import Strict


class Cluster(Strict):
    """A cluster of hosts with a scheduler; its nodes are those of the partition."""

    name: SkipJsonSchema[str] = ""
    scheduler: Literal["slurm"] = "slurm"
    partition: str | None = Field(None, description="without, the default partition")
    gres: str | None = Field(
        None, description="GPUs of a node as Slurm knows them, such as gpu:gfx1100:2; without, gpu:COUNT"
    )
    images: str | None = Field(
        None,
        description="where nodes take images from: a registry such as ghcr.io/me, or a folder of `matrix save`",
    )
    results: str | None = Field(None, description="results folder on every node, where --results names none")

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
