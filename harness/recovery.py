"""Intents without a record whose harness is gone: ended and recorded as interrupted."""

import time

from harness.contracts import HostFacts, Intent, Record
from harness.executors import Executor
from harness.job_environment import remove_scratch
from harness.processes import ProcessId, end_processes_of_run
from harness.records import Results
from harness.watch import GRACE_SECONDS


def recover(results: Results, host: HostFacts, executor: Executor) -> list[Record]:
    """Close the runs of this host that lost their harness. Doing it twice changes nothing."""
    recovered = []
    for intent in results.unfinished():
        if intent.host.machine != host.machine or owner_alive(intent):
            continue
        folder = results.run_folder(intent.run_id)
        if handle := executor.find(intent.run_id):
            handle.stop(GRACE_SECONDS)
        else:
            end_processes_of_run(folder, GRACE_SECONDS)
        remove_scratch(folder, all_of_it=False)
        record = Record(
            intent=intent,
            outcome="interrupted",
            diagnosis=None,
            detail="its harness was gone before there was a record",
            exit={},
            ran_on="unknown",
            finished=time.time(),
            seconds=0.0,
            last_phase=None,
            result=None,
        )
        results.finish(record)
        recovered.append(record)
    return recovered


def owner_alive(intent: Intent) -> bool:
    """Whether the harness that began a run on this machine still runs."""
    return ProcessId(intent.owner_pid, intent.owner_started, intent.host.boot_id).alive()
