"""Finds GPUs that fail what other GPUs pass. Pure."""

from collections import Counter, defaultdict
from itertools import permutations

from harness.search.stages.runs import SeenRun, SeenRuns

# The highest probability of calling one of equal GPUs bad, at one look; a campaign has dozens, at the same pairs.
ERROR = 0.01


def bad_gpus(seen: SeenRuns) -> tuple[int, ...]:
    """Return the GPUs of this machine that failed runs that another one passed, and too often for chance.

    It is a sign test on pairs.

    A pair consists of the first runs that count of exactly the same setting on two single GPUs. If all pairs that
    differ are to the disadvantage of one GPU, n of them have a probability of 2^-n by chance, for each ordered pair of
    GPUs.
    """
    firsts: dict[tuple[str, str, str], dict[int, SeenRun]] = defaultdict(dict)
    for run in seen.runs:
        if run.here and len(run.gpus) == 1 and run.count.counts:
            firsts[run.row.cell, run.row.workload, run.row.family].setdefault(run.gpus[0], run)
    worse = Counter[tuple[int, int]]()
    for by_gpu in firsts.values():
        worse.update(pair for pair in permutations(by_gpu, 2) if not by_gpu[pair[0]].passed and by_gpu[pair[1]].passed)
    orders = sum(1 for _ in permutations({gpu for pair in worse for gpu in pair}, 2))
    bad = {pair[0] for pair, count in worse.items() if _by_chance(count, worse[pair[1], pair[0]]) * orders < ERROR}
    return tuple(sorted(bad))


def _by_chance(worse: int, better: int) -> float:
    from scipy.stats import binomtest  # noqa: PLC0415

    return float(binomtest(worse, worse + better, alternative="greater").pvalue)
