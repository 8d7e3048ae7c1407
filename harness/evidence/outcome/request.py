"""The work that a run was asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.base.contract import OLD_CONTRACT
from harness.matrix.programs import Program
from harness.matrix.strategies import RANK_PER_DEVICE


@dataclass(frozen=True)
class Request:
    """The work that a run was asked to do.

    `gpus`: how many must be seen in use from outside. `devices`: how many the strategy is to use, of whatever kind.
    `hip`: the beginning of `torch.version.hip`, where it is not `rocm`'s. `jax`: the version of JAX that is to make
    the steps; None: torch is. `injected_fault`: the fault that is injected into it. `contract` is its app's, `nonce`
    the intent's; `resumed`: the steps that the checkpoints hold from which its models resume, in order. `program`:
    the user's own that is run in place of the app. `not_verified`: why this host has nothing to verify it in; None
    where it has.
    """

    workload_hash: str
    data_sha256: str
    device: str
    gpus: int
    torch: str | None
    rocm: str | None
    options: Mapping[str, Any]
    hip: str | None = None
    jax: str | None = None
    phases: tuple[str, ...] = ("train",)
    devices: int = 1
    max_device_memory: int | None = None
    injected_fault: str | None = None
    contract: int = OLD_CONTRACT
    nonce: str | None = None
    resumed: tuple[int, ...] = ()
    not_verified: str | None = None
    program: Program | None = None

    @property
    def models(self) -> list[str]:
        """The kinds of models asked for, in order."""
        return list(self.options.get("model", ("mlp",)))

    @property
    def ranks(self) -> int:
        """The number of processes that were to compute."""
        own = self.program is None and self.options["strategy"] in RANK_PER_DEVICE
        return self.devices if own else 1

    @property
    def epochs(self) -> int:
        """Epochs asked for."""
        return int(self.options.get("epochs", 1))

    @property
    def dtype(self) -> str:
        """The type the forward pass was asked to compute in."""
        if not self.options["use_mixed_precision"]:
            return "float32"
        return str(self.options.get("mixed_precision_dtype", "float16" if self.device == "cuda" else "bfloat16"))
