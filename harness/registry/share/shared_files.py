"""The files of a run folder that hosts exchange, and the hash of their content."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.base.files.hashes import json_hash
from harness.base.files.json_bounds import load_json
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import ANY_SIZE, UntrustedTree
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder, regex_of
from harness.registry.share.anonymise import scrubber_of_run, shared_intent, shared_record, shared_result
from harness.registry.share.scrub import Scrubber

# Models, checkpoints, pictures and lists of the host's processes are not exported.
NAMES = (
    RunFolder.INTENT,
    RunFolder.RECORD,
    RunFolder.STRIKES,
    RunFolder.LOG,
    RunFolder.VERIFICATION_LOG,
    RunFolder.MODEL_CHECK_LOG,
    RunFolder.REFERENCE_LOG,
    RunFolder.PROBE_LOG,
    RunFolder.CONTAINER,
    RunFolder.GPU_SENSORS,
    RunFolder.KEPT_RESULT,
    RunFolder.KEPT_VERIFICATION,
    RunFolder.KEPT_REFERENCE,
)
# In runs of earlier harnesses these files lie beside the others.
OF_APP = (WorkFolder.RESULT, WorkFolder.REFERENCE, WorkFolder.STACKS, WorkFolder.PROGRESS)
IN_WORK = rf"(?:{RunFolder.WORK}/)?(?:{'|'.join(map(regex_of, OF_APP))})"
IN_FAILURE = rf"{RunFolder.FAILURE}/[\w-]+\.(?:txt|json)"
FOLDERS = frozenset({RunFolder.FAILURE, RunFolder.KEPT, RunFolder.WORK})
SHARED = re.compile("|".join([*map(regex_of, NAMES), IN_WORK, IN_FAILURE]))
# Other lines of the kernel log are about networks, disks and other people's programs.
OF_GPUS_AND_MEMORY = re.compile(
    r"amdgpu|kfd|\bdrm\b|\bring\b|iommu|AMD-Vi|pcie|\bAER\b|\bmce\b|oom|out of memory|blocked for more than|segfault",
    re.IGNORECASE,
)
# Largest size of an exported file, in bytes; of a longer log only the beginning and the end are exported. A log of
# anything but text takes three times as much once it is text.
LARGEST_BYTES = 4 << 20
# Largest size of all exported files of a run, which may have ten thousand for its ranks; its work folder comes last.
MOST_EVIDENCE_BYTES = 16 << 20


def shared_files(record: Record, folder: RunFolder, scrubber: Scrubber) -> dict[str, bytes]:
    """Return the files of a run of this host for export, by name: records and evidence, without names and paths."""
    scrubber = scrubber_of_run(record.intent, folder.path, scrubber)
    intent = shared_intent(record.intent, scrubber)
    files: dict[str, bytes] = {
        RunFolder.INTENT: _json(intent),
        RunFolder.RECORD: _json(shared_record(record, scrubber, intent)),
    }
    left = MOST_EVIDENCE_BYTES
    for name in _evidence(folder):
        if name not in files and (content := _read(folder, name, min(LARGEST_BYTES, left))) is not None:
            left = max(0, left - len(content))
            files[name] = _shared_evidence(name, content, scrubber)
    return files


def imported_files(folder: RunFolder) -> dict[str, bytes]:
    """Return the files of an imported run for export, by name and unchanged.

    Raises:
        OSError: when a file cannot be read.
    """
    return {name: folder.named(name).read_bytes() for name in _evidence(folder)}


def content_hash(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents, in the order of names."""
    return hash_of_hashes({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})


def hash_of_hashes(hashes: Mapping[str, str]) -> str:
    """Return the content hash of files whose own SHA-256 are known, by name."""
    return json_hash(sorted(hashes.items()))


def _evidence(folder: RunFolder) -> list[str]:
    """Return the names of the files that are exported. Links are left out, because they may lead anywhere."""
    tree = UntrustedTree(folder.path)
    try:
        inner = tree.entries()
    except (FileNotFoundError, NotAFileError):
        return []
    found = [entry.name for entry in inner if entry.is_file]
    for place in (entry.name for entry in inner if entry.is_folder and entry.name in FOLDERS):
        with suppress(FileNotFoundError, NotAFileError):
            found += [f"{place}/{entry.name}" for entry in tree.entries(place) if entry.is_file]
    return sorted(name for name in found if SHARED.fullmatch(name))


def _read(folder: RunFolder, name: str, most: int) -> bytes | None:
    """Return the content of a file, without the middle if it has more than `most` bytes; None if it cannot be read."""
    with suppress(FileNotFoundError, NotAFileError), UntrustedTree(folder.path).open(name, ANY_SIZE) as file:
        if file.size <= most:
            return file.read(0, file.size)
        half = most // 2
        head = file.read(0, half).rpartition(b"\n")[0]
        tail = file.read(file.size - half, half).partition(b"\n")[2]
        return head + f"\n[{file.size - len(head) - len(tail)} bytes left out]\n".encode() + tail
    return None


def _shared_evidence(name: str, content: bytes, scrubber: Scrubber) -> bytes:
    text = content.decode(errors="replace")
    if name in (WorkFolder.RESULT, RunFolder.KEPT_RESULT):
        with suppress(ValidationError):
            return _json(shared_result(Result.parse(text), scrubber))
    if name == RunFolder.KERNEL_LOG:
        text = "".join(line for line in text.splitlines(keepends=True) if OF_GPUS_AND_MEMORY.search(line))
    if name.endswith(".json"):
        # Scrub the parsed values, because JSON may escape the characters of a path.
        with suppress(ValueError):
            value = load_json(text)
            value = _without_others(value) if name == RunFolder.MEMORY_OWNERS else value
            return (json.dumps(scrubber.value(value), indent=2, ensure_ascii=False) + "\n").encode()
    return scrubber.text(text).encode()


def _without_others(owners: Any) -> Any:
    """Return owners of GPU memory without the names of programs that are not part of the run."""
    if not isinstance(owners, list):
        return owners
    return [
        {**owner, "name": None} if isinstance(owner, dict) and not owner.get("of_this_run") else owner
        for owner in owners
    ]


def _json(value: BaseModel) -> bytes:
    return (value.model_dump_json(indent=2, by_alias=True) + "\n").encode()
