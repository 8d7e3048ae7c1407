import pytest

from harness.matrix.wheels import index_url, missing_wheel, releases, size


@pytest.mark.parametrize(
    ("torch", "rocm", "python"), [("2.5.1", "6.2", "3.11"), ("2.10.0", "7.0", "3.14"), ("2.13.0", None, "3.11")]
)
def test_what_was_released_has_nothing_against_it(torch: str, rocm: str | None, python: str) -> None:
    assert missing_wheel(torch, rocm, python) is None


def test_each_torch_was_built_for_exactly_two_rocm_versions() -> None:
    assert all(len(release.rocm) == 2 for release in releases().values())


def test_a_rocm_version_nobody_built_for() -> None:
    assert "no torch was released for ROCm 6.5" in (missing_wheel("2.9.1", "6.5", "3.11") or "")


def test_the_index_is_the_accelerators() -> None:
    assert index_url("rocm", "6.2.4") == "https://download.pytorch.org/whl/rocm6.2.4"
    assert index_url("cpu", None) == "https://download.pytorch.org/whl/cpu"


def test_every_accelerator_has_a_size() -> None:
    assert size("rocm").disk > size("cpu").disk > size("any").disk == 0
