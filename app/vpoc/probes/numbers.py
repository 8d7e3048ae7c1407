"""Known numbers, and their comparison with what a device computed."""

import torch

from vpoc.probes.site import WrongResultError


def integers(shape: tuple[int, ...], largest: int, seed: int) -> torch.Tensor:
    """Return the whole numbers from -largest to largest, int64 on the CPU.

    Sums of products of small ones are exact in floating point, whatever the order of summation and the kernel.
    """
    return torch.randint(-largest, largest + 1, shape, generator=torch.Generator().manual_seed(seed))


def require_equal(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Raise WrongResultError unless both are equal, number for number; compared on the CPU."""
    found = found.cpu()
    if found.shape != wanted.shape:
        raise WrongResultError(f"{what}: shape {tuple(found.shape)} instead of {tuple(wanted.shape)}")
    if torch.equal(found, wanted):
        return
    differ = (found != wanted).view(-1)
    # The first index that is true; `nonzero` would need eight times the memory.
    first = int(differ.to(torch.uint8).argmax())
    raise WrongResultError(
        f"{what}: {int(differ.sum())} of {differ.numel()} numbers are wrong; the first, at {first}, is "
        f"{found.view(-1)[first].item():g} instead of {wanted.view(-1)[first].item():g}"
    )


def require_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str) -> float:
    """Return the distance of `found` from `wanted` relative to the norm of `wanted` (2-norms, in float64 on the CPU).

    WrongResultError when it is more than `tolerance` or not a number.
    """
    found = found.detach().cpu().double()
    wanted = wanted.detach().double()
    if found.shape != wanted.shape:
        raise WrongResultError(f"{what}: shape {tuple(found.shape)} instead of {tuple(wanted.shape)}")
    length = float(wanted.norm())
    error = float((found - wanted).norm()) / length
    if not error <= tolerance:
        raise WrongResultError(
            f"{what}: {error:.3g} of its length away from the CPU's float64, allowed is {tolerance:g}; its length is "
            f"{float(found.norm()):.6g} instead of {length:.6g}"
        )
    return error
