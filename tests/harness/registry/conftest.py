from collections.abc import Iterator

import pytest

from tests.harness.fake_registry import FakeRegistry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    with fake.serving():
        yield fake
