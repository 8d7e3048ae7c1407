"""The attention model, the compiler and the optimizer, compared with float64 on the CPU."""

import importlib.util
import os
import shutil
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from vpoc.features.table import NAMES
from vpoc.models.attention import WINDOW
from vpoc.models.by_name import fresh_network
from vpoc.probes.numbers import require_close
from vpoc.probes.site import Site, Skipped

FEATURE_COUNT = len(NAMES)
BATCHES = (8, 32)
PASSES = 10
"""Passes with each batch on a GPU; a CPU computes the same every time."""
EXACT = 1e-4
"""Allowed distance of float32 from float64, relative to the norm of the numbers; 1e-6 is usual."""
GRADIENT = 5e-2
"""The same for gradients of the attention model; 1e-6 is usual.

Rounding can move a sum near zero to the other side of ReLU, which switches a unit's share of the gradient on or off: up
to 4e-2 for a unit of the head.
"""
GRADIENT_MIXED = 0.2
"""The same in mixed precision, where several such units are usual; 5e-2 was observed."""
SCALE = 1024.0
"""Keeps float16 gradients from underflowing, as the scaler does in training."""


def forward(site: Site) -> str:
    """Outputs of the attention model with 2.9 million parameters for batches of 8 and 32."""
    worst = 0.0
    for batch in BATCHES:
        rows, _ = _sample(batch)
        wanted = _network().double()(rows.double())
        for device in site.devices:
            site.at(f"batch {batch} on {device}")
            found = _network().to(device)(rows.to(device))
            worst = max(worst, require_close(found, wanted, EXACT, f"answers for a batch of {batch}"))
    return f"batches of {' and '.join(map(str, BATCHES))}, within {worst:.1g} of the CPU's float64"


def backward(site: Site) -> str:
    """Gradients of the same model, in float32 and as in training with mixed precision."""
    passes = PASSES if site.device == "cuda" else 1
    half = torch.float16 if site.device == "cuda" else torch.bfloat16
    worst = {torch.float32: 0.0, half: 0.0}
    for batch in BATCHES:
        rows, labels = _sample(batch)
        wanted = _gradient(_network().double(), rows.double(), labels.double())
        for device in site.devices:
            model, there, truth = _network().to(device), rows.to(device), labels.to(device)
            for dtype, tolerance in ((torch.float32, GRADIENT), (half, GRADIENT_MIXED)):
                for number in range(passes):
                    what = f"gradient for a batch of {batch} in {str(dtype).rpartition('.')[2]}"
                    site.at(f"{what}, pass {number + 1}, on {device}")
                    with torch.autocast(device.type, dtype=half, enabled=dtype is half):
                        found = _gradient(model, there, truth)
                    worst[dtype] = max(worst[dtype], require_close(found, wanted, tolerance, what))
    errors = " and ".join(f"{error:.1g} in {str(dtype).rpartition('.')[2]}" for dtype, error in worst.items())
    return f"batches of {' and '.join(map(str, BATCHES))}, {passes} passes each, within {errors} of the CPU's float64"


def compiled(site: Site) -> str:
    """Compare a small network under torch.compile, with its gradient, with the same network without it."""
    require_compiler(site.device)
    rows, labels = torch.randn(64, FEATURE_COUNT, generator=_dice()), torch.ones(64, 1)
    torch.manual_seed(7)
    plain = nn.Sequential(nn.Linear(FEATURE_COUNT, 32), nn.ReLU(), nn.Linear(32, 1))
    wanted = _gradient(plain, rows, labels)
    for device in site.devices:
        site.at(f"compiling for {device}")
        model = plain.to(device)
        with warnings.catch_warnings(), _not_available():
            # Torch's own deprecations are no fault of the stack.
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", DeprecationWarning)
            quick: nn.Module = torch.compile(model, fullgraph=True)  # type: ignore[assignment]
            found = _gradient(quick, rows.to(device), labels.to(device))
        require_close(found, wanted, EXACT, "gradient of the compiled network")
    if not any(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.py")):
        raise Skipped(
            "torch.compile was switched off: it compiled nothing (TORCHDYNAMO_DISABLE, TORCH_COMPILE_DISABLE)"
        )
    return "forward and backward agree with the network that was not compiled"


def require_compiler(device: str) -> None:
    """Raise Skipped if a tool of torch.compile is missing: a compiler, Python's headers, or Triton for GPUs."""
    names = (os.environ.get("CXX"), "g++") if device == "cpu" else (os.environ.get("CC"), "gcc", "clang")
    if not any(name and shutil.which(name) for name in names):
        needed = "a C++ compiler (g++, or the one named in CXX)" if device == "cpu" else "a C compiler (gcc or clang)"
        raise Skipped(f"torch.compile needs {needed}, and there is none; training does not need it")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise Skipped(
            "torch.compile needs Python.h (Debian: python3-dev), which is not there; training does not need it"
        )
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise Skipped("torch.compile needs Triton, which is not installed; training does not need it")


@contextmanager
def _not_available() -> Iterator[None]:
    """Raise Skipped if torch.compile does not support this Python, or a package that it imports is not installed."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ModuleNotFoundError):
                raise Skipped(
                    f"torch.compile needs the package {cause.name}, which is not installed; training does not need it"
                ) from error
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, RuntimeError) and "not supported on Python" in str(error):
            raise Skipped(f"this torch has no torch.compile for this Python: {error}") from error
        raise


def optimizer_step(site: Site) -> str:
    """Compare steps of Adam with given gradients with its formula (Kingma and Ba 2015, algorithm 1) in float64."""
    rate, decays, tiny = 1e-3, (0.9, 0.999), 1e-8
    shapes = ((32, FEATURE_COUNT), (32,), (256, 768), (1,))
    start = [torch.randn(shape, generator=_dice()) for shape in shapes]
    slopes = [[torch.randn(shape, generator=_dice(step)) for shape in shapes] for step in range(1, 6)]
    wanted = [value.double() for value in start]
    means = [torch.zeros_like(value) for value in wanted]
    squares = [torch.zeros_like(value) for value in wanted]
    for step, gradients in enumerate(slopes, start=1):
        for index, gradient in enumerate(gradients):
            means[index] = decays[0] * means[index] + (1 - decays[0]) * gradient.double()
            squares[index] = decays[1] * squares[index] + (1 - decays[1]) * gradient.double() ** 2
            mean, square = means[index] / (1 - decays[0] ** step), squares[index] / (1 - decays[1] ** step)
            wanted[index] = wanted[index] - rate * mean / (square.sqrt() + tiny)
    for device in site.devices:
        site.at(f"Adam on {device}")
        weights = [nn.Parameter(value.clone().to(device)) for value in start]
        optimizer = torch.optim.Adam(weights, lr=rate, betas=decays, eps=tiny)
        for gradients in slopes:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient.to(device)
            optimizer.step()
        for weight, before, after in zip(weights, start, wanted, strict=True):
            # Compare the change, not the value: a weight that did not move is nearly right.
            require_close(
                weight.detach().cpu().double() - before.double(), after - before.double(), 1e-3, "way of Adam"
            )
    return f"{len(slopes)} steps agree with the formula in float64"


def _network() -> nn.Module:
    return fresh_network("attention", FEATURE_COUNT, (), 7)


def _sample(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(batch).remainder(2).float().view(batch, 1)
    return torch.randn(batch, WINDOW, FEATURE_COUNT, generator=_dice()), labels


def _dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _gradient(model: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """All gradients of the mean loss of a batch, concatenated, in float64 on the CPU."""
    model.zero_grad()
    loss = functional.binary_cross_entropy_with_logits(model(rows).to(labels.dtype), labels)
    (loss * SCALE).backward()  # type: ignore[no-untyped-call]
    found = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.detach().cpu().double().view(-1) / SCALE for gradient in found if gradient is not None])
