"""The account of a run whose harness vanished before the run had ended, from the progress that it left."""

import math

from harness.evidence.app_reports.accounting import Accounting, asked_of
from harness.evidence.app_reports.progress import MOST_AT_ONCE, MOST_LINES, MOST_LINES_AT_ONCE, ProgressReader
from harness.evidence.app_reports.rank_account import SeenAt
from harness.evidence.files.run_files import Intent
from harness.evidence.files.work_folder import LARGEST, WorkFolder

# Most reads of the progress of one rank; several ranks share each read. A read of short lines takes fewer bytes.
MOST_LOOKS = LARGEST["progress"] // MOST_AT_ONCE + MOST_LINES // MOST_LINES_AT_ONCE


def account_for(intent: Intent, work: WorkFolder, seconds: float) -> Accounting:
    """Return the account of the progress in a work folder to which nothing is written any more.

    `seconds`: the longest time that the run can have taken. Nothing recorded when each line was written, so lines may
    be late by any time. Progress that is too much to be read accounts for nothing.
    """
    asked = asked_of(intent)
    accounting, reader = Accounting(asked), ProgressReader(work, asked.ranks)
    seen = SeenAt(-math.inf, seconds, 0.0)
    for _ in range(asked.ranks * MOST_LOOKS):
        for line in reader.new():
            accounting.saw(line, seen)
        if not reader.behind:
            break
    return accounting
