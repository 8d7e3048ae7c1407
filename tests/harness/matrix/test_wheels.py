import re
from pathlib import Path

import pytest
from packaging.version import Version
from pydantic import ValidationError

from harness.base.paths import CHECKOUT
from harness.matrix.cells import Matrix
from harness.matrix.wheels import (
    TABLE,
    has_kernels,
    index_url,
    load_wheels,
    missing_wheel,
    size,
    supported_targets,
    wheel_sources,
)


@pytest.mark.parametrize(
    ("torch", "rocm", "python"), [("2.5.1", "6.2", "3.11"), ("2.10.0", "7.0", "3.14"), ("2.13.0", None, "3.11")]
)
def test_what_was_released_has_nothing_against_it(torch: str, rocm: str | None, python: str) -> None:
    assert missing_wheel(torch, rocm, python) is None


def test_each_torch_of_pytorchs_was_built_for_exactly_two_rocm_versions() -> None:
    built: dict[str, set[str]] = {}
    for release in load_wheels().releases:
        for torch in release.torch if release.source.startswith("pytorch") else ():
            built.setdefault(torch, set()).update(release.rocm)
    assert len(built) > 20
    assert all(len(rocm) == 2 for rocm in built.values())


@pytest.mark.parametrize("source", wheel_sources())
def test_a_newer_torch_drops_no_python_but_the_oldest(source: str) -> None:
    releases = [one for one in load_wheels().releases if one.source == source]
    pythons = [
        [int(python.removeprefix("3.")) for python in one.python]
        for one in sorted(releases, key=lambda one: Version(one.torch[0]))
    ]
    assert pythons == sorted(pythons, key=lambda one: (one[0], one[-1]))
    # AMD's folders only have wheels for the Pythons of some Ubuntu releases, so there are gaps.
    assert source == "amd-rel" or all(one == [*range(one[0], one[-1] + 1)] for one in pythons)


TORCH_2_6 = '  - {torch: ["2.6.0"], rocm: ["6.1", "6.2.4"], python: ["3.9", "3.10", "3.11", "3.12", "3.13"]}\n'


@pytest.mark.parametrize(
    ("row", "told"),
    [
        # Only the first of two such rows would be used, so the Pythons of the other would be missing.
        (
            '{torch: ["2.6.0"], rocm: ["6.1"], python: ["3.9"]}',
            r"released twice by one source: torch 2\.6\.0 for ROCm 6\.1 ",
        ),
        # Otherwise its runs would be reported to have used another ROCm.
        (
            '{source: amd-10, torch: ["9.0.0"], rocm: ["99.0.0"], python: ["3.11"]}',
            r"`hip:` should name ROCm 10\.0, .* and 99\.0, ",
        ),
    ],
)
def test_a_release_that_contradicts_the_rest_is_refused(row: str, told: str, tmp_path: Path) -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert TORCH_2_6 in text
    file = tmp_path / "wheels.yaml"
    file.write_text(text.replace(TORCH_2_6, f"{TORCH_2_6}  - {row}\n"), "utf-8")
    with pytest.raises(ValidationError, match=told):
        load_wheels(file)


def test_a_rocm_version_nobody_built_for() -> None:
    assert "no torch was released for ROCm 6.5" in (missing_wheel("2.9.1", "6.5", "3.11") or "")


def test_the_index_is_the_accelerators() -> None:
    assert index_url("rocm", "6.2.4") == "https://download.pytorch.org/whl/rocm6.2.4"
    assert index_url("cpu", None) == "https://download.pytorch.org/whl/cpu"


def test_every_accelerator_has_a_size() -> None:
    assert size("rocm").disk > size("cpu").disk > size("any").disk == 0
    # Code for one GPU target instead of all.
    assert size("packages").download < size("rocm").download


def test_a_pair_of_another_source_is_named() -> None:
    assert missing_wheel("2.12.0", "7.14.0", "3.11", "amd-7") is None
    assert "`source: amd-7` has it" in (missing_wheel("2.12.0", "7.14.0", "3.11") or "")
    assert "known are pytorch, " in (missing_wheel("2.12.0", "7.14.0", "3.11", "amd7") or "")


def test_the_page_names_the_oldest_and_the_newest_rocm_that_a_stack_takes_from_a_source(matrix: Matrix) -> None:
    page = (CHECKOUT / "docs" / "matrix.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)`[^|]*\|[^|]*?, (ROCm [^|]*)\|", page, re.MULTILINE))
    for source in {stack.source for stack in matrix.stacks.values() if stack.rocm}:
        own = [one for one in matrix.stacks.values() if one.source == source and not one.torch_from_base]
        versions = sorted((one.rocm for one in own if one.rocm), key=Version)
        named = re.findall(r"[\d.]*\d", rows[source])
        assert (named[0], named[-1]) == (versions[0], versions[-1]), source


def test_only_the_oldest_torch_of_a_source_that_knows_it_is_asked_for() -> None:
    assert "not a known release of source amd-10; known are 2.13.0" in (
        missing_wheel("2.9.1", "6.3", "3.11", "amd-10") or ""
    )


def test_a_mirror_stands_for_the_url_of_a_source() -> None:
    mirror = "https://mirror.example/whl/{platform}"
    assert index_url("rocm", "6.3", mirror=mirror) == "https://mirror.example/whl/rocm6.3"
    assert index_url("rocm", "6.4.2", "amd-rel").endswith("/rocm-rel-6.4.2")


def test_every_source_says_what_was_read_and_its_size_in_gb_and_packages_are_never_mixed_with_pypis() -> None:
    for source in wheel_sources().values():
        assert all(text.startswith("https://") for text in source.said_by)
        assert source.size is None or 1 <= source.size.download < source.size.disk < 50, "GB"
        # Otherwise a package of that name on PyPI could be installed in its place.
        assert source.rocm == "inside" or source.strategy == "first"


@pytest.mark.parametrize(
    ("rocm", "target", "expected"),
    [
        ("6.3", "gfx1201", False),
        ("6.4", "gfx1201", True),
        ("7.0", "gfx1200", True),
        ("5.7", "gfx1100", True),
        ("6.2", "gfx1101", False),
        ("6.3", "gfx1101", True),
        ("7.2", "gfx906", True),
        ("7.14", "gfx906", False),
        ("10.0.0", "gfx1100", True),
        ("7.14", "gfx1036", False),
    ],
)
def test_wheels_with_kernels_for_a_gpu(rocm: str, target: str, expected: bool) -> None:
    assert has_kernels(rocm, target) == expected


def test_cards_of_their_own_have_kernels_somewhere_and_integrated_gpus_do_not_count() -> None:
    assert {"gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"} <= supported_targets()
    assert not {"gfx1036", "gfx1103"} & supported_targets()
