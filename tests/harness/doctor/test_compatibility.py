from pathlib import Path

import pytest
from packaging.version import Version

from harness.base.files.yaml_lines import read_yaml
from harness.doctor import compatibility
from harness.doctor.compatibility import is_excluded, is_outside, kernel_report, window_of
from harness.doctor.machine import WantedRocm
from harness.matrix.cells import Matrix
from harness.matrix.wheels import supported_targets


@pytest.mark.parametrize(
    ("module", "inside", "outside"),
    [
        ("6.2.4", ["5.5", "5.7", "6.1"], ["5.4", "6.2"]),
        ("6.3.6", ["5.6", "6.2", "6.2.4"], ["6.3"]),
        ("6.8.5", ["6.0", "6.2.4", "7.0"], ["5.7", "7.1"]),
        ("6.10.5", ["6.1", "6.3", "7.0"], ["6.0", "7.1"]),
        ("6.16.13", ["6.3", "6.4", "7.0", "7.2"], ["6.2", "6.2.4"]),
        ("6.19.14", ["7.0", "7.2", "7.14.0"], ["6.4", "10.0.0"]),
        ("7.1.3", ["7.0", "7.14.0", "10.0.0"], ["6.4", "10.1.0"]),
    ],
)
def test_windows_of_drivers(module: str, inside: list[str], outside: list[str]) -> None:
    window = window_of(module)
    assert window is not None
    assert [rocm for rocm in inside + outside if window.holds(rocm)] == inside


@pytest.mark.parametrize(
    ("module", "excluded"),
    [("6.10.5", ["6.0", "7.2", "7.14.0", "10.0.0"]), ("6.16.13", ["6.0", "6.2.4"]), ("6.19.14", ["6.0", "6.2.4"])],
)
def test_of_rocm_later_than_the_table_nothing_is_known(module: str, excluded: list[str], matrix: Matrix) -> None:
    window = window_of(module)
    assert window is not None
    assert [rocm for rocm in ("6.0", "6.2.4", "7.2", "7.14.0", "10.0.0") if window.excludes(rocm)] == excluded
    stacks = {stack.rocm: stack for stack in matrix.stacks.values() if stack.rocm in ("6.2.4", "7.14.0", "10.0.0")}
    assert {rocm for rocm, stack in stacks.items() if is_excluded(module, stack)} == stacks.keys() & set(excluded)
    # But ROCm that a driver is known to support comes first.
    assert {rocm for rocm, stack in stacks.items() if not is_outside(module, stack)} == {
        rocm for rocm in stacks if window.holds(rocm)
    }


def test_an_unknown_driver_has_no_window() -> None:
    assert window_of("6.10") is None
    assert window_of("in-tree") is None


@pytest.mark.parametrize(
    ("kernel", "gfx", "fails"),
    [
        ("6.18.5-arch1-1", "gfx1100", True),
        ("6.18.13-200.fc43.x86_64", "gfx1100", True),
        ("6.19.11-generic", "gfx1100", True),
        ("7.0.11-1-cachyos", "gfx1100", True),
        ("7.0.0-070000-generic", "gfx1100", True),
        ("6.18.5-arch1-1", "gfx1201", None),
        ("6.17.9-arch1-1", "gfx1100", False),
        ("6.12.57+deb13-amd64", "gfx1100", False),
        ("6.12.10-arch1-1", "gfx1100", False),
        ("6.12.57+deb13-amd64", "gfx1201", None),
        ("6.11.0-29-generic", "gfx1100", None),
        ("6.1.0-32-amd64", "gfx1100", None),
        ("6.8.0-51-generic", "gfx1100", None),
        # Not known to be cured of what 7.0 has.
        ("7.1.6-1-cachyos", "gfx1100", False),
        ("7.2.0-rc3", "gfx1100", False),
        ("7.10.1-arch1-1", "gfx1100", False),
        ("8.0.2-1-amd64", "gfx1100", False),
        ("7.1.6-1-cachyos", "gfx1201", None),
    ],
)
def test_what_is_reported_of_kernels(kernel: str, gfx: str, fails: bool | None) -> None:
    report = kernel_report(kernel, gfx)
    assert (report and report.fails) == fails
    assert report is None or (report.fix is not None) == report.fails


def test_both_reports_of_6_12_are_reported_with_their_sources() -> None:
    report = kernel_report("6.12.57+deb13-amd64", "gfx1100")
    assert report is not None
    assert "no page faults of 6.18's kind" in report.seen
    assert "https://github.com/ROCm/amdgpu/issues/225" in report.seen
    assert "HSA_STATUS_ERROR_OUT_OF_REGISTERS" in report.seen
    assert "https://github.com/ROCm/ROCm/issues/4437" in report.seen


def test_a_newer_driver_is_listed_once_and_its_window_begins_and_ends_no_earlier() -> None:
    drivers = read_yaml(Path(compatibility.__file__).with_name("compatibility.yaml")).data["drivers"]
    modules = [Version(row["module"]) for row in drivers]
    assert modules == sorted(set(modules))
    firsts, lasts = zip(*(map(Version, row["rocm"]) for row in drivers), strict=True)
    assert (list(firsts), list(lasts)) == (sorted(firsts), sorted(lasts))
    assert all(first <= last for first, last in zip(firsts, lasts, strict=True))


def test_the_table_names_what_exists(matrix: Matrix) -> None:
    file = Path(compatibility.__file__).with_name("compatibility.yaml")
    table = read_yaml(file).data
    assert {gfx for row in table["kernels"] for gfx in row["targets"]} <= supported_targets()
    windows = [window for row in table["drivers"] if (window := window_of(row["module"]))]
    # AMD supports every ROCm of the matrix with some driver; for those after 10.0 none is in the table.
    for stack in matrix.stacks.values():
        unpublished = stack.rocm is None or Version(stack.rocm) > Version("10.0")
        assert unpublished or any(window.holds(stack.rocm or "") for window in windows)


def test_versions_of_the_matrix_that_are_one_are_named_once() -> None:
    stacks = tuple((rocm, f"rocm{rocm}-torch2.14.0") for rocm in ("10.0.0", "7.14", "6.3", "7.14.0"))
    assert WantedRocm(stacks, frozenset()).versions() == ["6.3", "7.14.0", "10.0.0"]
