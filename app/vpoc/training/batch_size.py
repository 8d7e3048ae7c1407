"""The largest micro-batch that fits into the memory of a device, and the errors that mean out of memory."""

from collections.abc import Callable

import torch

from vpoc.errors import UserError
from vpoc.features.table import NAMES
from vpoc.models.by_name import input_shape
from vpoc.training.batches import share_size
from vpoc.training.precision import autocast
from vpoc.training.strategies.single import Single
from vpoc.training.train_options import TrainOptions

OUT_OF_MEMORY_WORDS = ("out of memory", "hipErrorOutOfMemory", "DefaultCPUAllocator: can't allocate memory")
"""Words of a RuntimeError when the runtime under torch, not its allocator of GPU memory, is out of memory."""


class OutOfMemory(UserError):  # noqa: N818 - torch has an OutOfMemoryError, which is another
    """Not even the smallest batch fits. Exit code 1: the input may be right, and the next device may have room."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


def largest_that_fits(fits: Callable[[int], bool], at_most: int, at_least: int = 1) -> int:
    """The largest size from `at_least` to `at_most` that fits, by halving what is left.

    `fits(size)` tries a size; what is smaller than one that fits must fit, too. It is asked `at_most` first, since that
    costs nothing where memory is no matter, then at most ceil(log2(n)) times, n being the number of sizes.

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


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory, of a device or of the host, ran out."""
    # torch.OutOfMemoryError came with torch 2.5; torch.cuda.OutOfMemoryError, the same class, is older.
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in OUT_OF_MEMORY_WORDS)


def micro_batch_size(options: TrainOptions, strategy: Single, kind: str) -> int:
    """Samples in one pass of one rank. `auto`: the most that fit on every rank; the batch stays what it is.

    UserError for `auto` with fsdp, whose ranks would wait for one that ran out of memory.
    """
    share = share_size(options.batch_size, strategy.world)
    if options.micro_batch_size != "auto":
        return min(int(options.micro_batch_size or share), share)
    if options.strategy == "fsdp":
        raise UserError("--micro-batch-size auto does not work with --strategy fsdp; give a number")
    shape = input_shape(kind, len(NAMES))
    return strategy.smallest(largest_that_fits(lambda size: fits(strategy, options, size, shape), share))


def fits(strategy: Single, options: TrainOptions, size: int, shape: tuple[int, ...]) -> bool:
    """Return whether a step on `size` samples of `shape` has enough memory; the model is afterwards as it was."""
    parameters = list(strategy.model.parameters())
    moments: list[torch.Tensor] = []
    try:
        # What Adam will keep, and does not before its first step.
        moments += [torch.zeros_like(parameter) for parameter in parameters for _ in range(2)]
        with strategy.exchange(last=False), autocast(options, strategy.devices[0]):
            logits = strategy.forward(torch.zeros(size, *shape, device=strategy.devices[0]))
        logits.float().sum().backward()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        moments.clear()
        for parameter in parameters:
            parameter.grad = None
        if strategy.devices[0].type == "cuda":
            torch.cuda.empty_cache()
    return True
