from collections.abc import Iterator

import pytest

from tests.harness.fake_registry import FakeRegistry


@pytest.fixture(params=[False, True], ids=["without referrers", "with referrers"])
def registry(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    fake = FakeRegistry(knows_referrers=request.param)
    with fake.serving():
        yield fake
