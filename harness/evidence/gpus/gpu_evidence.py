"""The files of `make gpu-evidence`: evidence about the app's code on one GPU, never about a cell.

They enter no verdict, count or tag.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, FailFast, Field, ValidationError

from harness.base.files.json_files import File, Versioned
from harness.base.files.storage import read_regular
from harness.base.validation_errors import first_problem
from harness.evidence.records import Results

GPU_EVIDENCE = "gpu-evidence.json"
# Largest file that is read, in bytes: it may come from another machine.
LARGEST_BYTES = 4_000_000
LONGEST_PROBLEM = 200

RowVerdict = Literal["held", "differs", "not-applicable", "not-reached"]


class GpuEvidenceFacts(File):
    """The device and the software with which the evidence was made."""

    name: str = Field(description="of the GPU, or of the CPU where none was used")
    gfx: str | None
    memory_bytes: Annotated[int, Field(ge=0, lt=1 << 50)] | None
    torch: str
    hip: str | None
    cuda: str | None
    driver: str | None
    python: str
    numpy: str | None = None
    kernel: str | None
    source: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(description="git revision of the code")
    source_dirty: bool | None = Field(description="true: with changes that were not committed")


class GpuEvidenceRow(File):
    """One claim about the code, and whether it was seen to hold."""

    row: str
    shows: str
    verdict: RowVerdict
    detail: str
    numbers: dict[str, Any] = Field(description="what the detail is made of")
    seconds: float | None
    gpu_only: bool = Field(description="a CPU cannot run it")
    shown_red: bool = Field(description="a fault planted in the code it judges was seen to change its verdict")
    last_lines: tuple[str, ...] = Field((), description="printed by a process that did not end as it should")


class GpuEvidence(Versioned):
    """`gpu-evidence.json`: what the app's code did on one device; it says nothing about a cell."""

    kind: Literal["gpu-evidence"]
    started: AwareDatetime
    seconds: float
    limit_s: float
    device: Literal["cuda", "cpu"] = Field(description="as torch calls it; `cuda` is any GPU, `cpu` is none")
    steps: int = Field(description="of each training")
    facts: GpuEvidenceFacts
    rows: Annotated[tuple[GpuEvidenceRow, ...], FailFast()]


@dataclass(frozen=True)
class EvidenceFile:
    """A file, by its path relative to the results folder, with its content or the reason why that cannot be read."""

    file: str
    content: GpuEvidence | None
    problem: str = ""


def read_gpu_evidence(results: Results) -> list[EvidenceFile]:
    """Return every file of evidence about code on a GPU, in the order of their paths."""
    try:
        folders = sorted(place for place in results.gpu_evidence.iterdir() if not place.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [EvidenceFile(results.gpu_evidence.name, None, _in_short(error))]
    return list(_found(results, [results.gpu_evidence, *folders]))


def _found(results: Results, folders: list[Path]) -> Iterator[EvidenceFile]:
    for folder in folders:
        file = folder / GPU_EVIDENCE
        name = os.fsencode(file.relative_to(results.folder)).decode(errors="replace")
        try:
            yield EvidenceFile(name, GpuEvidence.parse(read_regular(file, LARGEST_BYTES)))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValidationError) as error:
            yield EvidenceFile(name, None, _in_short(error))


def _in_short(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return f"is damaged or something else: {first_problem(error)}"[:LONGEST_PROBLEM]
