"""The number type of the forward pass."""

import torch

from vpoc.training.train_options import TrainOptions


def forward_dtype(options: TrainOptions, device: torch.device) -> torch.dtype:
    """Return float32, or with mixed precision the type asked for (by default float16 on a GPU, bfloat16 on a CPU)."""
    if not options.use_mixed_precision:
        return torch.float32
    usual = "float16" if device.type == "cuda" else "bfloat16"
    dtype: torch.dtype = getattr(torch, options.mixed_precision_dtype or usual)
    return dtype


def autocast(options: TrainOptions, device: torch.device) -> torch.autocast:
    """Return the context in which torch computes in `forward_dtype` what it may."""
    dtype = forward_dtype(options, device)
    return torch.autocast(device.type, dtype=dtype if dtype != torch.float32 else None, enabled=dtype != torch.float32)
