"""Fixtures of run folders such as two hosts have."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts

ALICE = "/home/alice/matrix/results/runs"


@pytest.fixture
def other_host(host: HostFacts) -> HostFacts:
    """Return another machine, of another kind of host."""
    return host.model_copy(update={"machine": "o" * 16, "fingerprint": "9" * 16, "kind": "8" * 16, "boot_id": "later"})


@pytest.fixture
def keep_run(make_record: Callable[..., Record]) -> Callable[..., Record]:
    """Return a function that writes a run folder as a run leaves one; it takes the keywords of `make_record`."""

    def keep(results: Results, run_id: str, outcome: str = "completed", **changes: Any) -> Record:
        place = f"{ALICE}/{run_id}"
        given: dict[str, Any] = {
            "campaign": "c1",
            "data": {"path": "/home/alice/es.csv", "sha256": "a" * 64},
            "commands": {"train": ("/home/alice/env/bin/python", "-m", "vpoc", "train", "--output", f"{place}/output")},
            "variables": {"train": {"HOME": f"{place}/scratch", "TMPDIR": "/tmp/matrix-0123456789ab"}},
            "owner_pid": 4711,
        }
        record = make_record(run_id, outcome, detail=f"see {place}/log.txt", **{**given, **changes})
        folder = results.begin(record.intent)
        files = {
            "log.txt": f"{run_id} wrote {place}/output/model.pt with /home/alice/es.csv\n",
            "progress-0.jsonl": '{"schema": 2}\n',
            "position-0.bin": "0123456789abcdef",
            "process.json": '{"pid": 4711}',
            "output/model.pt": "weights",
            "failure/container.json": '{"Mounts": [{"Source": "\\/home\\/alice\\/es.csv"}]}',
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        results.finish(record)
        return record

    return keep
