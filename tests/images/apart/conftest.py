"""Fixtures of tests that run beside the other tests of images: what they make is theirs alone, or in their own engines.

They build no image of a stack or cell, start no container of a run, and move no tag of another test. Of the others
they need the base images at most.
"""

import pytest

from harness.base.paths import CHECKOUT
from harness.matrix.cells import Matrix
from harness.matrix.load import Given, load_matrix
from tests.images.conftest import BASE


@pytest.fixture(autouse=True, scope="session")
def _containers() -> None:
    """Do not wait until the containers of the others are gone."""


@pytest.fixture(autouse=True, scope="session")
def _images() -> None:
    """Do not remove what this checkout builds meanwhile, because the others use it."""


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    """Return the matrix on a base that need not be there."""
    return load_matrix(CHECKOUT / "matrix.yaml", Given(BASE))
