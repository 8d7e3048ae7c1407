"""Which GPU fails what another one passes. Pure."""

from collections import Counter, defaultdict
from itertools import permutations

from harness.search.stages.runs import SeenRun, SeenRuns

# With equal GPUs one is called bad at most with this probability at one look; there are dozens, of the same pairs.
ERROR = 0.01


def bad_gpus(seen: SeenRuns) -> tuple[int, ...]:
    """Return the GPUs that failed runs which another passed, and too often for chance: a sign test on pairs.

    A pair are the first runs that count of the very same on two GPUs alone. Where all pairs that differ are to the
    disadvantage of one GPU, n of them have the probability 2^-n by chance, for each order of each two GPUs.
    """
    firsts: dict[tuple[str, str, str], dict[int, SeenRun]] = defaultdict(dict)
    for run in seen.runs:
        if len(run.gpus) == 1 and run.count.counts:
            firsts[run.row.cell, run.row.workload, run.row.family].setdefault(run.gpus[0], run)
    worse = Counter[tuple[int, int]]()
    for by_gpu in firsts.values():
        worse.update(pair for pair in permutations(by_gpu, 2) if not by_gpu[pair[0]].passed and by_gpu[pair[1]].passed)
    orders = max(1, len({gpu for pair in worse for gpu in pair}) ** 2 // 2)
    bad = {pair[0] for pair, count in worse.items() if _by_chance(count, worse[pair[1], pair[0]]) * orders < ERROR}
    return tuple(sorted(bad))


def _by_chance(worse: int, better: int) -> float:
    from scipy.stats import binomtest  # noqa: PLC0415

    return float(binomtest(worse, worse + better, alternative="greater").pvalue)
