"""Finds wheels in the listing of a package index that wheels.yaml and matrix.yaml lack. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from harness.matrix.wheels import OLDEST_PYTHON, PYTORCH, load_wheels, release_of

# The table counts as old after so many days, because new releases come every two months.
OLD_AFTER_DAYS = 60
PACKAGES_FROM = Version("7.14")
AMD_10 = Version("10.0")


@dataclass(frozen=True)
class NewPair:
    """A torch for a ROCm version that a listing has but wheels.yaml lacks."""

    source: str
    torch: str
    rocm: str
    label: str
    pythons: tuple[str, ...]

    @property
    def release_line(self) -> str:
        """The line for `releases:` of wheels.yaml."""
        source = "" if self.source == PYTORCH else f"source: {self.source}, "
        label = "" if self.label == f"rocm{self.rocm}" else f", label: {self.label}"
        pythons = ", ".join(f'"{version}"' for version in self.pythons)
        return f'  - {{{source}torch: ["{self.torch}"], rocm: ["{self.rocm}"]{label}, python: [{pythons}]}}'

    @property
    def stack_line(self) -> str:
        """The line for `stacks:` of matrix.yaml."""
        source = "" if self.source == PYTORCH else f", source: {self.source}"
        contents = f'accelerator: rocm, rocm: "{self.rocm}", torch: "{self.torch}"{source}'
        return f"  rocm{self.rocm}-torch{self.torch}: {{{contents}}}"


def new_pairs(listing: str) -> list[NewPair]:
    """Return the new pairs in a listing, which is any text with names of wheels, such as a page of an index.

    Only releases for Linux on x86_64 and for Python 3.11 or newer count. The label of the version tells the source.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for torch, label, python in _wheels(listing):
        found.setdefault((torch, label), set()).add(python)
    pairs = (_pair(torch, label, pythons) for (torch, label), pythons in found.items())
    new = [pair for pair in pairs if release_of(pair.torch, pair.rocm, pair.source) is None]
    return sorted(new, key=lambda pair: (Version(pair.torch), Version(pair.rocm)))


def age_of_table(today: date) -> str | None:
    """Return a message that the table of wheels is old, and what to do; None if it is not old."""
    checked = load_wheels().checked
    days = (today - checked).days
    if days <= OLD_AFTER_DAYS:
        return None
    return (
        f"wheels.yaml was compared with its sources on {checked}, {days} days ago: save a listing of an index and give "
        f"it to `matrix lint --new FILE`"
    )


def _wheels(listing: str) -> Iterator[tuple[str, str, str]]:
    """Yield version, label and Python of each wheel of torch for ROCm that a text names."""
    for name in set(re.findall(r"\btorch-[^\s\"'<>/#=]+?\.whl", unquote(listing))):
        try:
            _, version, _, tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        label = name.split("-")[1].partition("+")[2]
        if not label.startswith("rocm") or version.is_prerelease or version.is_devrelease:
            continue
        for tag in tags:
            number = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
            if number and tag.abi == tag.interpreter and re.fullmatch(r"(many)?linux.*_x86_64", tag.platform):
                python = f"{number[1]}.{number[2]}"
                if Version(python) >= OLDEST_PYTHON:
                    yield version.public, label, python


def _pair(torch: str, label: str, pythons: set[str]) -> NewPair:
    rocm = re.match(r"rocm(\d+(?:\.\d+)*)", label)
    number = rocm[1].rstrip(".") if rocm else "0"
    return NewPair(_source_of(label, number), torch, number, label, tuple(sorted(pythons, key=Version)))


def _source_of(label: str, rocm: str) -> str:
    """Return the source of a label: AMD's labels have three numbers, and those of its folders also have a hash."""
    if "git" in label or label.endswith(".lw"):
        return "amd-rel"
    if Version(rocm) < PACKAGES_FROM:
        return PYTORCH
    if re.fullmatch(r"\d+\.\d+", rocm):
        return "pytorch-packages"
    return "amd-10" if Version(rocm) >= AMD_10 else "amd-7"
