"""Says whether all resets in the kernel log were of the same GPU. Pure."""

import json
from collections import Counter
from collections.abc import Callable, Sequence

from harness.base.wording import listed, many
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts
from harness.host.facts import GpuFacts
from harness.host.gpus.kernel_resets import gpus_named

# What would happen in fewer cases than this, were all GPUs alike, is said to be no chance.
CHANCE = 0.05
FEWEST_RESETS = 2


def whose_resets(rows: Sequence[Row], counts: Counts, gpus_of: Callable[[Row], Sequence[GpuFacts]]) -> str:
    """Return a sentence if all resets that name a GPU name the same one, though others were used; empty otherwise.

    The kernel log names the GPU also where a run used several, which no count of passed runs tells.

    - `rows`: runs on one kind of host, ordered by time; those of the machine of the newest reset are looked at.
    - `gpus_of`: returns the GPUs of a run's host.
    """
    reset = {
        row.run_id: gpus_named(counts[row.run_id].why, gpus_of(row)) for row in rows if counts[row.run_id].gpu_fault
    }
    told = [row for row in rows if reset.get(row.run_id)]
    if not told:
        return ""
    mine = [row for row in rows if row.machine == told[-1].machine and counts[row.run_id].counts]
    resets = Counter(gpu for row in mine for gpu in reset.get(row.run_id, ()))
    used = Counter(gpu for row in mine for gpu in json.loads(row.gpus))
    if len(resets) != 1 or (times := resets.total()) < FEWEST_RESETS:
        return ""
    (bad,) = resets
    address = next(gpu.address for gpu in gpus_of(told[-1]) if gpu.index == bad)
    if not (others := sorted(used.keys() - {bad})):
        return ""
    elsewhere = listed([f"GPU {gpu}, which {used[gpu]:,} used" for gpu in others])
    said = (
        f"All {times:,} resets in the kernel log that name a GPU were of GPU {bad} ({address}), which "
        f"{many(used[bad], 'counted run')} used, and none of {elsewhere}"
    )
    # If each use of a GPU could have ended so, all resets are of one GPU with at most this probability.
    if len(used) * (used[bad] / used.total()) ** times >= CHANCE:
        return f"{said}."
    return f"{said}: no chance, so suspect that card, its slot or its power before stacks and presets, and swap it."
