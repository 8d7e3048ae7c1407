from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.evidence.outcome.decide import Outcome
from harness.evidence.outcome.diagnoses import Diagnosis
from harness.evidence.outcome.evidence import Evidence
from harness.run import conclude
from harness.run.notes import Notes


@pytest.mark.parametrize(
    ("diagnosis", "has_result", "accounted"),
    [
        ("verification-failed", True, ()),
        ("not-finite", True, ()),
        # The app itself found the number, before it wrote another checkpoint.
        ("not-finite", False, (58,)),
        ("crash", False, (58,)),
    ],
)
def test_nothing_is_resumed_from_numbers_that_are_wrong_though_the_gpu_failed_its_probe(
    diagnosis: Diagnosis, accounted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, *, has_result: bool
) -> None:
    def decide(_: object, evidence: Evidence) -> Outcome:
        at_fault = Outcome("host-fault", "unhealthy-gpu", "its probe")
        return at_fault if evidence.host_problems else Outcome("failed", diagnosis, "wrong")

    monkeypatch.setattr(conclude, "decide", decide)
    monkeypatch.setattr(conclude, "after_failure", lambda *_, **__: ("GPU 0 failed its probe",))
    monkeypatch.setattr(conclude, "explain_run", lambda *_: None)
    spec = cast("Any", SimpleNamespace(now_awake=1.0, request=None, folder=None, intent=None))
    evidence = Evidence(exits={}, result=cast("Any", object()) if has_result else None, steps_accounted=(58,))
    found = conclude.conclude_run(spec, cast("Any", None), evidence, {}, Notes(), 0.0)
    assert (found.outcome.diagnosis, found.evidence.steps_accounted) == ("unhealthy-gpu", accounted)
