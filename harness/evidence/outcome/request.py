"""The request: the work that a run has to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.base.contract import OLD_CONTRACT
from harness.matrix.programs import Program
from harness.matrix.strategies import RANK_PER_DEVICE


@dataclass(frozen=True)
class Request:
    """The work that a run has to do.

    Attributes:
        gpus: The number of GPUs that must be seen in use from outside.
        devices: The number of devices that the strategy has to use, of any kind.
        hip: The beginning of `torch.version.hip`, where it differs from `rocm`.
        jax: The version of JAX that has to make the steps; None where torch has to.
        injected_fault: The fault that is injected into the run.
        contract: The version of the contract that the app follows.
        nonce: The nonce of the intent.
        resumed: For each model, in order, the number of steps in the checkpoint from which it resumes.
        program: The user's own program that runs in place of the app.
        not_verified: Why this host has no environment to verify the run in; None where it has one.
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
        """The kinds of the requested models, in order."""
        return list(self.options.get("model", ("mlp",)))

    @property
    def ranks(self) -> int:
        """The number of processes that have to compute."""
        own = self.program is None and self.options["strategy"] in RANK_PER_DEVICE
        return self.devices if own else 1

    @property
    def epochs(self) -> int:
        """The number of requested epochs."""
        return int(self.options.get("epochs", 1))

    @property
    def dtype(self) -> str:
        """The data type in which the forward pass has to compute."""
        if not self.options["use_mixed_precision"]:
            return "float32"
        return str(self.options.get("mixed_precision_dtype", "float16" if self.device == "cuda" else "bfloat16"))
