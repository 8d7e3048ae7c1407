"""How large a micro-batch may be: as asked for, or the largest that a device has memory for."""

import torch

from vpoc.errors import UserError
from vpoc.features.table import NAMES
from vpoc.models.build import input_shape
from vpoc.training.batch_size import is_out_of_memory, largest_that_fits
from vpoc.training.batches import share_size
from vpoc.training.loop import autocast
from vpoc.training.options import TrainOptions
from vpoc.training.strategies.single import Single


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
    """Whether a step on `size` samples of `shape` has enough memory; the model is afterwards as it was."""
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
