"""The account of a run whose harness was gone before it had ended: by the progress that it left."""

import math
from pathlib import Path

from harness.evidence.accounting import Accounting
from harness.evidence.outcome.tolerances import COMPARED_STEPS
from harness.evidence.progress import MOST_AT_ONCE, ProgressReader
from harness.evidence.rank_account import AskedWork, SeenAt
from harness.evidence.run_files import Intent
from harness.evidence.work_folder import LARGEST, WorkFolder
from harness.matrix.strategies import RANK_PER_DEVICE

MOST_LOOKS = LARGEST["progress"] // MOST_AT_ONCE


def account_for(intent: Intent, work: WorkFolder, seconds: float) -> Accounting:
    """Return the account of the progress in a work folder that nobody writes to any more.

    `seconds`: the longest that the run can have taken. Nobody saw when each line was written, so that a line may be as
    late as it likes; what is too much to be read accounts for nothing.
    """
    asked = asked_of(intent)
    accounting, reader = Accounting(asked), ProgressReader(work, asked.ranks)
    seen = SeenAt(-math.inf, seconds, 0.0)
    for _ in range(MOST_LOOKS):
        for line in reader.new():
            accounting.saw(line, seen)
        if not reader.behind:
            break
    return accounting


def asked_of(intent: Intent) -> AskedWork:
    """Return the work that the progress of a run has to account for, by its intent."""
    options = intent.options
    models = options.get("model", ("mlp",))
    return AskedWork(
        contract=intent.contract,
        nonce=intent.nonce,
        ranks=int(options.get("devices", 1)) if options.get("strategy") in RANK_PER_DEVICE else 1,
        epochs=int(options.get("epochs", 1)),
        processes=len(intent.commands),
        resumed=intent.resumed or (0,) * len(models),
        kept_steps=COMPARED_STEPS,
        loop=str(options.get("loop", "plain")),
        may_end_early=bool(options.get("patience")),
        data_bytes=_size(Path(intent.data.path)),
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
