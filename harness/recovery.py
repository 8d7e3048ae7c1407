"""Intents without a record whose harness is gone: ended and recorded as interrupted."""

import time

from harness.contracts import HostFacts, Record
from harness.executors import Executor
from harness.job_environment import remove_scratch
from harness.processes import ProcessId, end_processes_of_run
from harness.records import Results
from harness.watch import GRACE_SECONDS


def recover(results: Results, host: HostFacts, executor: Executor) -> list[Record]:
    """Close the runs of this host that lost their harness. Doing it twice changes nothing."""
    recovered = []
    for intent in results.unfinished():
        owner = ProcessId(intent.owner_pid, intent.owner_started, intent.host.boot_id)
        if intent.host.fingerprint != host.fingerprint or owner.alive():
            continue
        if handle := executor.find(intent.run_id):
            handle.stop(GRACE_SECONDS)
        end_processes_of_run(intent.run_id, GRACE_SECONDS)
        remove_scratch(results.run_folder(intent.run_id), all_of_it=False)
        record = Record(
            intent=intent,
            outcome="interrupted",
            diagnosis=None,
            detail="the harness ended before the run did",
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
