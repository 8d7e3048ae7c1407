"""Fixtures of a run on two GPUs whose logs are full of what must not be posted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.host.facts import HostFacts

PRIVATE = {
    "host": "kraken-box",
    "user": "alice",
    "own address": "192.0.2.17",
    "another address": "198.51.100.23",
    "address of 128 bits": "fe80::1c2d:3e4f:5a6b:7c8d",
    "network card": "02:42:ac:11:00:0f",
    "mail": "alice.b@example.org",
    "path": "/srv/secret",
    "data": "es-2024.csv",
    "serial": "GPU-5f3a9c0d1e2b4a6f",
}
ILLEGAL = "RuntimeError: HIP error: an illegal memory access was encountered"
# Texts from which GitHub would make links and notifications in a posted comment.
MENTIONS = "@bob, &#64;bob, ROCm/ROCm#1, gh-2, https://github.com/ROCm/ROCm/issues/3, www.github.com/4"
STACK = {"cell": "rocm6.3-torch2.9.1-plain", "stack": "rocm6.3-torch2.9.1", "rocm": "6.3", "torch": "2.9.1"}


@pytest.fixture
def keep_failure(tmp_path: Path, make_record: Callable[..., Record], dual_host: HostFacts) -> Callable[..., Record]:
    """Return a function that writes a failed run as a real run would; keywords replace fields of its intent."""
    results = Results(tmp_path / "results")

    def keep(run_id: str = "r1", log: str = ILLEGAL, **changes: Any) -> Record:
        every = "\n".join(f"{what} {written} {what}" for what, written in PRIVATE.items())
        data = f"{PRIVATE['path']}/{PRIVATE['data']}"
        gpus = tuple(
            gpu.model_copy(update={"vbios": "022.001.002.037", "firmware": {"mec": "0x00000083"}})
            for gpu in dual_host.gpus
        )
        told: dict[str, Any] = {
            "host": dual_host.model_copy(
                update={"boot_id": "b5e1-4d1e", "gpus": gpus, "kernel": f"6.8.0-{PRIVATE['host']}"}
            ),
            "device": "cuda",
            "gpus": (0, 1),
            "data": {"path": data, "sha256": "a" * 64},
            "variables": {"train": {"HSA_ENABLE_SDMA": "0", "SECRET_TOKEN": "hunter2", "MIOPEN_DB": "/srv/secret/db"}},
        }
        record = make_record(
            run_id, "failed", "app-error", f"see {data} on {PRIVATE['host']}, {MENTIONS}", **STACK, **told | changes
        )
        folder = results.begin(record.intent)
        files = {
            RunFolder.LOG: f'{every}\n  File "{data}/train.py", line 3\n{log}\n',
            RunFolder.KERNEL_LOG: (
                f"2026-11-20T10:00:00+0000 {PRIVATE['host']} kernel: amdgpu 0000:03:00.0: [gfxhub] page fault\n"
                "[ 4.0] UFW BLOCK SRC=203.0.113.7\n"
            ),
            RunFolder.FIRST_STACKS: f'Thread 0x01 (most recent call first):\n  File "{data}/a.py", line 9 in f\n',
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        results.finish(record)
        return record

    return keep
