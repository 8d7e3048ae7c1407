import pytest

from harness.base.contract import CONTRACT
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.outcome.request import Request
from tests.harness.evidence.outcome.judged import Values, evidence_of


@pytest.fixture
def request_(result_values: Values) -> Request:
    options = {key: value for key, value in result_values["options"].items() if key != "device"}
    return Request(
        workload_hash=result_values["workload_hash"],
        data_sha256=result_values["data"]["sha256"],
        device="cpu",
        gpus=0,
        torch="2.13.0",
        rocm=None,
        options=options,
        contract=CONTRACT,
        nonce="0" * 32,
    )


@pytest.fixture
def evidence(result_values: Values) -> Evidence:
    return evidence_of(result_values)
