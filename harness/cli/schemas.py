"""The JSON Schemas in docs/reference/schemas and docs/reference/files.md, made from the types: `make schemas`."""

import json
from typing import Any

from pydantic import BaseModel

from harness.base.paths import CHECKOUT
from harness.evidence.files.app_files import Progress, Result, Verification
from harness.evidence.files.run_files import HealthStep, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.gpus.gpu_evidence import GPU_EVIDENCE, GpuEvidence
from harness.evidence.gpus.gpu_sensors import GpuSensorSample
from harness.evidence.gpus.host_changes import HostChange
from harness.evidence.gpus.strikes import Strike
from harness.evidence.isolations import FaultIsolation
from harness.matrix.cells import Matrix
from harness.registry.share.imports import Origin
from harness.registry.tags.promotions import TagMove
from harness.report.model import Report

SCHEMAS = CHECKOUT / "docs" / "reference" / "schemas"
TABLE = CHECKOUT / "docs" / "reference" / "files.md"

FILES: dict[str, type[BaseModel]] = {
    "matrix": Matrix,
    "progress": Progress,
    "result": Result,
    "verification": Verification,
    "intent": Intent,
    "record": Record,
    "health": HealthStep,
    "gpu-sensors": GpuSensorSample,
    "strike": Strike,
    "host-change": HostChange,
    "isolation": FaultIsolation,
    "imported": Origin,
    "promotion": TagMove,
    "gpu-evidence": GpuEvidence,
    "report": Report,
}
NAMES = {
    "matrix": "matrix.yaml",
    "progress": f"{WorkFolder.PROGRESS.format(rank='RANK')}, a line each",
    "result": WorkFolder.RESULT,
    "verification": RunFolder.KEPT_VERIFICATION,
    "intent": RunFolder.INTENT,
    "record": RunFolder.RECORD,
    "health": "results/health/MACHINE.jsonl, a line each",
    "gpu-sensors": f"{RunFolder.GPU_SENSORS}, a line each: about one a second, fewer of a long run",
    "strike": f"{RunFolder.STRIKES}, a line each, in the folder of a run that `matrix strike` struck out",
    "host-change": "results/hosts/MACHINE.jsonl, a line each",
    "isolation": "results/isolations/ID.json, what `matrix isolate` found",
    "imported": f"{RunFolder.IMPORTED}, in the folder of a run that came with `matrix import`",
    "promotion": "results/promotions.jsonl, a line each",
    "gpu-evidence": f"results/gpu-evidence/TIME/{GPU_EVIDENCE}",
    "report": "results/report.json",
}
INTRODUCTION = """\
# The files of a run, key by key

This page and the JSON Schemas in [schemas](schemas/) are made from the types by `make schemas`.

A run folder, `results/runs/RUN-ID/`, is the harness's; the app is given `work/` in it and nothing else
([how that is read](../running.md#records)). It holds

| file | content |
|---|---|
| `intent.json` | what is to be run; written before anything starts |
| `work/progress-RANK.jsonl`, `work/position-RANK.bin`, `work/stacks-RANK.txt` | where each rank is \
([training](../training.md#when-nothing-moves)) |
| `log.txt` | what the processes printed |
| `work/result.json`, `work/output/` | written last by the app: what was really done; \
metadata and curves, and the model until its copy is verified |
| `work/states/` | weights from before some steps; removed when the run has completed |
| `kept/` | copies that the app cannot reach: `result.json`, `model-NUMBER.pt`, and `state-NUMBER.pt`, the one picked |
| `kept/verification.json`, `verification.txt` | what this host computed again of the run, and what that printed |
| `gpu-sensors.jsonl` | power, temperatures, clocks and memory of its GPUs while it ran, where the driver tells them |
| `stall.json` | where the run stalled last for more than 5 s, and how long it may there, in seconds |
| `failure/` | of a run that did not complete ([what is in it](../watching.md#what-is-saved-of-a-failure)) |
| `record.json` | the statement about the run; written last |

An index of the records, `records.db`, lies with the user's state (`~/.local/state/rocm-matrix/index`), on each host its
own; `matrix index` rebuilds it.
"""


def json_schema(model: type[BaseModel]) -> str:
    """Return the JSON Schema of a file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(by_alias=True)}
    return json.dumps(schema, indent=2) + "\n"


def markdown() -> str:
    """Return the keys of every file, as Markdown tables."""
    parts = [INTRODUCTION]
    for name, model in FILES.items():
        schema = model.model_json_schema(by_alias=True)
        parts.append(f"\n## {NAMES[name]}\n\n{_text(schema)}\n\n| key | type | meaning |\n|---|---|---|\n")
        parts += _rows(schema, schema.get("$defs", {}), "")
    return "".join(parts)


def _rows(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> list[str]:
    rows = []
    for key, value in schema.get("properties", {}).items():
        kind, inner = _kind(value, definitions)
        meaning = value.get("description") or (_text(inner) if inner else "")
        rows.append(f"| `{prefix}{key}` | {kind} | {meaning} |\n")
        # The record holds the intent and the result, which have tables of their own.
        if inner and inner.get("title") not in ("Intent", "Result"):
            step = "[]." if kind.startswith("list") else ".NAME." if kind.startswith("mapping") else "."
            rows += _rows(inner, definitions, f"{prefix}{key}{step}")
    return rows


def _kind(value: dict[str, Any], definitions: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return a key's type in words, and the definition of the objects in it (None if it has none)."""
    if "$ref" in value:
        return "object", definitions[value["$ref"].split("/")[-1]]
    if "anyOf" in value:
        kinds = [_kind(option, definitions) for option in value["anyOf"]]
        return " or ".join(kind for kind, _ in kinds), next((inner for _, inner in kinds if inner), None)
    if "enum" in value or "const" in value:
        return ", ".join(f"`{option}`" for option in value.get("enum", [value.get("const")])), None
    if value.get("type") == "array":
        kind, inner = _kind(value.get("items", {}), definitions)
        return f"list of {kind}", inner
    if value.get("type") == "object":
        of = next(iter(value.get("patternProperties", {}).values()), value.get("additionalProperties"))
        kind, inner = _kind(of, definitions) if isinstance(of, dict) else ("anything", None)
        return f"mapping to {kind}", inner
    return str(value.get("type", "anything")), None


def _text(schema: dict[str, Any]) -> str:
    return " ".join(str(schema.get("description", "")).split())


def write_all() -> None:
    """Write the schemas and the table."""
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    for name, model in FILES.items():
        (SCHEMAS / f"{name}.schema.json").write_text(json_schema(model), encoding="utf-8")
    TABLE.write_text(markdown(), encoding="utf-8")


if __name__ == "__main__":
    write_all()
