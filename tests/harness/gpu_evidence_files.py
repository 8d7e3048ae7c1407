"""Files such as `make gpu-evidence` writes."""

import json
from pathlib import Path
from typing import Any

from harness.evidence.gpus.gpu_evidence import GPU_EVIDENCE
from harness.evidence.records import Results

SOURCE = "0123456789abcdef0123456789abcdef01234567"


def a_row(row: str = "profile-chunked", verdict: str = "held", **changes: Any) -> dict[str, Any]:
    """Return a row of the file."""
    values = {"row": row, "shows": "one sentence", "verdict": verdict, "detail": "one line", "numbers": {"any": 1.0}}
    return {**values, "seconds": 3.1, "gpu_only": False, "shown_red": True, "last_lines": [], **changes}


def gpu_evidence(
    *rows: dict[str, Any], started: str = "2026-11-22T17:00:00Z", device: str = "cuda", **facts: Any
) -> dict[str, Any]:
    """Return the content of the file; keywords replace facts about the GPU."""
    known = {
        "name": "AMD Radeon RX 7900 XT",
        "gfx": "gfx1100",
        "memory_bytes": 21458059264,
        "torch": "2.9.1+rocm6.3",
        "hip": "6.3.42134",
        "cuda": None,
        "driver": None,
        "python": "3.11.2",
        "numpy": "2.2",
        "kernel": "6.1.0",
        "source": SOURCE,
        "source_dirty": False,
    }
    run = {"schema": 2, "kind": "gpu-evidence", "started": started, "seconds": 431.2, "limit_s": 480, "device": device}
    return {**run, "steps": 200, "facts": {**known, **facts}, "rows": list(rows or [a_row()])}


def write_gpu_evidence(results: Results, content: object, folder: str = "20261122T170000Z") -> Path:
    """Write the file into a folder of the results: a text unchanged, anything else as JSON."""
    file = results.gpu_evidence / folder / GPU_EVIDENCE
    file.parent.mkdir(parents=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file
