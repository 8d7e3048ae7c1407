"""Matrix products and convolution, on whole numbers that are small enough for floating point to be exact."""

from collections.abc import Callable

import torch
from torch.nn import functional

from vpoc.features.table import NAMES
from vpoc.probes.numbers import integers, require_close, require_equal
from vpoc.probes.site import Site, Skipped

Convolution = Callable[..., torch.Tensor]

SHAPES = ((1, 1, 1), (17, 31, 5), (64, 64, 64), (512, 512, 512), (256, len(NAMES), 32))
"""Rows, terms of each sum, columns."""
LARGEST = {"float32": 64, "float16": 2, "bfloat16": 1}
"""Largest numbers for which sums of 896 products are exact in that type: below 2^24, 2^11 and (as signs cancel) 2^8."""


def matmul(site: Site, dtype: str) -> str:
    """Products of several shapes, plain, transposed and batched."""
    number = _number(site, dtype)
    for device in site.devices:
        for seed, (rows, terms, columns) in enumerate(SHAPES):
            site.at(f"{rows} x {terms} x {columns} on {device}")
            left, right, wanted = _product(rows, terms, columns, dtype)
            a, b = left.to(device, number), right.to(device, number)
            what = f"product {seed + 1} in {dtype}"
            require_equal(a @ b, wanted, what)
            require_equal(a.t().contiguous().t() @ b, wanted, f"{what}, left transposed")
            require_equal(a @ b.t().contiguous().t(), wanted, f"{what}, right transposed")
            require_equal(torch.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1))[2], wanted, f"{what}, batched")
    return f"{len(SHAPES)} shapes, plain, transposed and batched, exact"


def hipblaslt_shape(site: Site) -> str:
    """A linear layer from 896 to 8 numbers over 412 rows: in BLAS order m 8, n 412, k 896, first matrix transposed."""
    if site.device == "cpu":
        raise Skipped("hipBLASLt is a library for GPUs")
    for device in site.devices:
        linear_8_412_896(site, device)
    chosen = getattr(torch.backends.cuda, "preferred_blas_library", None)
    library = f"; library preferred: {str(chosen()).rpartition('.')[2]}" if chosen else ""
    return f"float32, float16 and bfloat16, with and without bias, exact{library}"


def linear_8_412_896(site: Site, device: torch.device) -> None:
    """The shape of `hipblaslt_shape` on one device."""
    for dtype in LARGEST:
        site.at(f"m 8, n 412, k 896 in {dtype} on {device}")
        left, right, wanted = _product(412, 896, 8, dtype)
        number = getattr(torch, dtype)
        rows, weight = left.to(device, number), right.t().contiguous().to(device, number)
        bias = torch.ones(8, device=device, dtype=number)
        require_equal(functional.linear(rows, weight), wanted, f"linear layer in {dtype}")
        require_equal(functional.linear(rows, weight, bias), wanted + 1, f"linear layer with bias in {dtype}")
        batched = functional.linear(rows.view(4, 103, 896), weight)
        require_equal(batched.reshape(412, 8), wanted, f"linear layer over a batch in {dtype}")


def addmm(site: Site) -> str:
    """Bias + left @ right, and its scaled form."""
    for device in site.devices:
        for rows, terms, columns in SHAPES:
            site.at(f"{rows} x {terms} x {columns} on {device}")
            left, right, product = _product(rows, terms, columns, "float32")
            bias = integers((columns,), 1000, seed=2)
            a, b, c = (matrix.to(device, torch.float32) for matrix in (left, right, bias))
            require_equal(torch.addmm(c, a, b), product + bias, "addmm")
            require_equal(torch.addmm(c, a, b, beta=2, alpha=-1), 2 * bias - product, "addmm with factors")
    return f"{len(SHAPES)} shapes, exact"


def convolution(site: Site) -> str:
    """Compare convolutions in two dimensions and one, and their gradients, with the CPU's.

    They are not exact, because kernels may use Winograd's fractions or TF32.
    """
    worst = 0.0
    for device in site.devices:
        for stride in (1, 2):
            site.at(f"2-D, stride {stride}, on {device}")
            worst = max(worst, _convolved(functional.conv2d, (4, 16, 32, 32), (32, 16, 3, 3), stride, device))
        site.at(f"1-D on {device}")
        worst = max(worst, _convolved(functional.conv1d, (8, len(NAMES), 32), (64, len(NAMES), 5), 1, device))
    return f"answers and gradients within {worst:.1g} of the CPU's float64"


def _convolved(
    function: Convolution, inputs: tuple[int, ...], kernel: tuple[int, ...], stride: int, device: torch.device
) -> float:
    def run(where: torch.device, number: torch.dtype) -> tuple[torch.Tensor, ...]:
        rows = integers(inputs, 8, seed=0).to(where, number).requires_grad_()
        weight = integers(kernel, 8, seed=1).to(where, number).requires_grad_()
        out = function(rows, weight, stride=stride, padding=1)
        return out, *torch.autograd.grad(out.sum(), [rows, weight])

    found, wanted = run(device, torch.float32), run(torch.device("cpu"), torch.float64)
    names = ("convolution", "its gradient by the input", "its gradient by the kernel")
    return max(require_close(f, w, 1e-3, name) for f, w, name in zip(found, wanted, names, strict=True))


def _product(rows: int, terms: int, columns: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two matrices and their product, in the number type but computed in integers."""
    largest = LARGEST[dtype]
    left, right = integers((rows, terms), largest, seed=0), integers((terms, columns), largest, seed=1)
    return left, right, (left @ right).to(getattr(torch, dtype))


def _number(site: Site, dtype: str) -> torch.dtype:
    number: torch.dtype = getattr(torch, dtype)
    if site.device == "cpu":
        try:
            torch.ones(1, 1, dtype=number) @ torch.ones(1, 1, dtype=number)
        except RuntimeError as error:
            if "not implemented" in str(error):
                raise Skipped(f"this torch has no products in {dtype} on a CPU") from error
            raise
    return number
