"""A rank of the row `two-processes` with a fault: its gradients are means instead of sums."""

from benchmarks.gpu_evidence.checks import ranks
from vpoc.training.strategies.distributed import Collective


def rank_of_two(site, *arguments):
    Collective.loss_factor = 1.0
    return ranks.rank_of_two(site, *arguments)
