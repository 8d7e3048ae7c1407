"""The number type of the forward pass."""

from contextlib import AbstractContextManager, nullcontext

import torch

from vpoc.training.train_options import TrainOptions


def half_of(device: torch.device) -> torch.dtype:
    """Return the usual 16-bit type: float16 on a GPU, bfloat16 on a CPU."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def forward_dtype(options: TrainOptions, device: torch.device) -> torch.dtype:
    """Return float32, or with mixed precision the requested type (by default `half_of`)."""
    if not options.use_mixed_precision:
        return torch.float32
    asked = options.mixed_precision_dtype
    dtype: torch.dtype = getattr(torch, asked) if asked else half_of(device)
    return dtype


def autocast(options: TrainOptions, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which torch computes in `forward_dtype` where it can."""
    dtype = forward_dtype(options, device)
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)
