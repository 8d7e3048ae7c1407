"""JAX and its device, which is exactly the requested one: there is no fallback."""

import os
import warnings
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

import torch

from vpoc.device import describe
from vpoc.errors import UserError
from vpoc.training.train_options import TrainOptions

PLAIN = {
    "strategy": "single",
    "loop": "plain",
    "use_mixed_precision": False,
    "micro_batch_size": None,
    "activation_checkpointing": False,
    "deterministic": False,
    "injected_fault": None,
}
"""Values of options for which torch's trainer has further ones that JAX's lacks."""


@dataclass(frozen=True)
class JaxDevice:
    """The device that JAX computes on, and the `versions` of JAX and of its packages."""

    device: Any
    versions: dict[str, str]

    def facts(self) -> dict[str, Any]:
        """Return the same facts as `vpoc.device.describe`. A GPU is called cuda here, as in torch."""
        if self.device.platform == "cpu":
            return describe(torch.device("cpu"))
        memory = self.device.memory_stats() or {}
        kind = str(getattr(self.device, "compute_capability", ""))
        return {
            "rank": 0,
            "device": f"cuda:{self.device.id}",
            "name": str(self.device.device_kind),
            "gfx": kind if kind.startswith("gfx") else None,
            # The limit of what JAX may use; JAX does not report the device's total.
            "memory_bytes": memory.get("bytes_limit"),
        }


def require_plain(options: TrainOptions) -> None:
    """Raise UserError for options that JAX's trainer lacks.

    It trains an mlp in float32 on one device, in whole batches.
    """
    other = [name for name, value in PLAIN.items() if getattr(options, name) != value]
    other += ["model"] if options.model != ("mlp",) else []
    if other:
        named = ", ".join("--" + ("inject_fault" if n == "injected_fault" else n).replace("_", "-") for n in other)
        raise UserError(
            f"--framework jax trains mlp in float32 on one device with the plain loop, whole batches at a time; "
            f"leave out or change {named}, or choose --framework torch"
        )
    if options.device != "cpu" and options.vpoc_path != "cpu":
        raise UserError("--vpoc-path: with --framework jax torch sees no GPU, so that profiles are computed on the CPU")


def start_jax(options: TrainOptions) -> JaxDevice:
    """Import JAX and return its device.

    UserError when JAX is not installed (exit code 1), or sees no such device (exit code 3).
    """
    # JAX reads this variable when it creates its threads.
    os.environ.setdefault("PJRT_NPROC", str(options.threads))
    try:
        import jax  # noqa: PLC0415
    except ImportError as error:
        raise UserError(f"--framework jax: {error}; install jax beside torch", exit_code=1) from error
    if options.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    # JAX warns at each fork of a loader worker, because the process has threads. No worker calls JAX, and torch's
    # loader also forks beside the threads of HIP.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    # Without this, JAX would use a shorter type for products of float32 on GPUs that have one.
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        device = jax.devices("cpu" if options.device == "cpu" else "gpu")[0]
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"--device cuda: jax {jax.__version__} sees no GPU ({first}); check the driver, the device nodes, ROCm's "
            "packages and JAX's plugin for it, or ask for --device cpu",
            exit_code=3,
        ) from error
    return JaxDevice(device, _versions())


def _versions() -> dict[str, str]:
    found = {(one.metadata["Name"] or "").lower().replace("_", "-"): one.version for one in distributions()}
    return {name: found[name] for name in sorted(found) if name.startswith("jax")}
