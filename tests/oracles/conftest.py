"""Fixtures for tests with AMD's own programs and libraries, run on simulated hosts."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.compiled_kernel import CompilerMissingError
from harness.host.simulated import SimulatedHost, dual_7900xt, without_gpu
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from tests.oracles.packages import UnavailableError, debian_root, jax_python
from tests.oracles.programs import Programs, made


def _not_here(why: object) -> NoReturn:
    if os.environ.get("REQUIRE_ORACLES"):
        pytest.fail(f"{why}; and REQUIRE_ORACLES is set")
    pytest.skip(str(why))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    try:
        return made(debian_root(), tmp_path_factory.mktemp("compiled"))
    except (UnavailableError, CompilerMissingError) as error:
        _not_here(error)


@pytest.fixture(scope="session")
def jax() -> Path:
    try:
        return jax_python()
    except UnavailableError as error:
        _not_here(error)


@pytest.fixture
def empty(tmp_path: Path) -> SimulatedHost:
    """Return a host without a GPU."""
    return without_gpu(SimulatedHost(tmp_path / "host"))


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """Return a host with two RX 7900 XT."""
    return dual_7900xt(tmp_path / "host")


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return load_matrix(CHECKOUT / "matrix.yaml")
