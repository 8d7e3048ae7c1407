from pathlib import Path

import pytest

from harness.campaign.sequence import run_stages as module
from harness.host.facts import HostFacts
from tests.harness.campaign.sequence.staged import MakeRecord, Staged


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> Staged:
    monkeypatch.setattr(module, "host_cause", lambda *_: None)
    staged = Staged.on(tmp_path, host)
    staged.data = tmp_path / "merged.csv"
    staged.data.write_text("bars")
    staged.make_record, staged.passes, staged.workloads = make_record, lambda _: True, []
    return staged
