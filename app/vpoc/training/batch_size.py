"""The largest micro-batch that fits into the memory of a device."""

from collections.abc import Callable

import torch

from vpoc.errors import UserError
from vpoc.features.table import NAMES
from vpoc.gpu_memory.out_of_memory import is_out_of_memory
from vpoc.gpu_memory.spare import spare_share
from vpoc.models.by_name import input_shape
from vpoc.training.inputs.batches import share_size
from vpoc.training.precision import autocast
from vpoc.training.strategies.single import Single
from vpoc.training.train_options import TrainOptions


class OutOfMemory(UserError):  # noqa: N818 - torch has an OutOfMemoryError, which is another
    """Not even the smallest batch fits. Exit code 1: the input may be right, and another device may have room."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


def largest_that_fits(fits: Callable[[int], bool], at_most: int, at_least: int = 1) -> int:
    """Return the largest size from `at_least` to `at_most` that fits, found by bisection.

    `fits(size)` tries a size; every size below one that fits must fit, too. `at_most` is tried first, since that is
    cheap where memory is plentiful, then at most ceil(log2(n)) sizes, n being the number of sizes.

    Raises:
        OutOfMemory: `at_least` does not fit.
        ValueError: not 1 <= at_least <= at_most.
    """
    if not 1 <= at_least <= at_most:
        raise ValueError(f"sizes from {at_least} to {at_most}")
    if fits(at_most):
        return at_most
    good, bad = at_least - 1, at_most
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    if good < at_least:
        raise OutOfMemory(
            f"a micro-batch of {at_least} does not fit into the memory of the device; use --activation-checkpointing, "
            "--use-mixed-precision or a smaller --model, or free the device's memory"
        )
    return good


def micro_batch_size(options: TrainOptions, strategy: Single, kind: str) -> int:
    """Return samples in one pass of one rank. `auto`: the most that fit on every rank; the batch size does not change.

    UserError for `auto` with fsdp, whose ranks would wait for a rank that ran out of memory.
    """
    share = share_size(options.batch_size, strategy.world)
    if options.micro_batch_size != "auto":
        return min(int(options.micro_batch_size or share), share)
    if options.strategy == "fsdp":
        raise UserError("--micro-batch-size auto does not work with --strategy fsdp; give a number")
    shape = input_shape(kind, len(NAMES))
    return strategy.smallest(largest_that_fits(lambda size: fits(strategy, options, size, shape), share))


def fits(strategy: Single, options: TrainOptions, size: int, shape: tuple[int, ...]) -> bool:
    """Return whether a step on `size` samples of `shape` leaves memory to spare; the model is unchanged afterwards."""
    # Empty torch's cache, because memory of earlier work, such as features, would count as used.
    _free(strategy)
    enough = _has_memory_for(strategy, options, size, shape)
    # The memory of the step can be freed only now: neither its logits nor an error's stack keep the graph alive.
    for parameter in strategy.model.parameters():
        parameter.grad = None
    _free(strategy)
    return enough


def _free(strategy: Single) -> None:
    if strategy.devices[0].type == "cuda":
        torch.cuda.empty_cache()


def _has_memory_for(strategy: Single, options: TrainOptions, size: int, shape: tuple[int, ...]) -> bool:
    """Make a forward and a backward pass beside the memory that Adam will use; False when memory runs out."""
    device = strategy.devices[0]
    held: list[torch.Tensor] = []
    try:
        for each in dict.fromkeys(place for place in strategy.devices if place.type == "cuda"):
            spare = int(spare_share(each, options.spare) * torch.cuda.mem_get_info(each)[1])
            held.append(torch.empty(spare, dtype=torch.uint8, device=each))
        # Adam creates its two moments of each parameter in its first step.
        held += [torch.zeros_like(parameter) for parameter in strategy.model.parameters() for _ in range(2)]
        with strategy.exchange(last=False), autocast(options, device):
            logits = strategy.forward(torch.zeros(size, *shape, device=device))
        logits.float().sum().backward()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
