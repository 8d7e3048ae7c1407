"""`python -m benchmarks.gpu_evidence`."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
# By any Python: the app need not be installed in it.
sys.path[:0] = [str(ROOT), str(ROOT / "app")]

from benchmarks.gpu_evidence.page import page  # noqa: E402
from benchmarks.gpu_evidence.rows import ROWS, Row  # noqa: E402
from benchmarks.gpu_evidence.run import DIFFERS, Judged, Setting, device_that_is_there, run_rows  # noqa: E402

ARRAYS = ROOT / ".cache" / "gpu-evidence" / "arrays.npz"
BUDGET_S = 480.0
STEPS = 200
NO_DEVICE, INTERRUPTED = 3, 130
FACTS = """
import json, sys
from benchmarks.gpu_evidence.checks.environment import facts_of
print(json.dumps(facts_of(sys.argv[1])))
"""
EPILOG = """
It writes gpu-evidence.json and gpu-evidence.md into --output. Exit status: 0 no row differs, 1 one does, 2 usage,
3 the device is not there, 130 interrupted (what is known is written).

  python -m benchmarks.gpu_evidence                         all rows, as far as the budget reaches
  python -m benchmarks.gpu_evidence profile-* sdpa-*        these rows
  python -m benchmarks.gpu_evidence --destructive           also what breaks the GPU, last
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows, write what was found, and return the exit status."""
    chosen = _parser().parse_args(arguments)
    rows = _chosen(chosen.rows)
    if chosen.list:
        for row in rows:
            print(f"{row.name:<36} {row.limit_s:>4.0f} s  {row.shows}")
        return 0
    if not chosen.arrays.exists():
        print(
            f"gpu-evidence: {chosen.arrays}: no prepared arrays; make them where the app's environment is: "
            f"`make gpu-arrays`, or `python -m benchmarks.gpu_evidence.prepare {chosen.arrays}`",
            file=sys.stderr,
        )
        return 2
    there = device_that_is_there()
    device = chosen.device or there
    if device == "cuda" and there == "cpu":
        print("gpu-evidence: --device cuda: torch sees no GPU; see `vpoc probe --device cuda`", file=sys.stderr)
        return NO_DEVICE
    return _measure(rows, device, chosen)


def _measure(rows: Sequence[Row], device: str, chosen: argparse.Namespace) -> int:
    started, began = time.gmtime(), time.monotonic()
    output = chosen.output or ROOT / "results" / "gpu-evidence" / time.strftime("%Y%m%dT%H%M%SZ", started)
    folder = output / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    stopped: list[int] = []

    def stop(signum: int, _frame: FrameType | None) -> None:
        stopped.append(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    facts = {**_facts(device), **_source()}
    setting = Setting(
        device, chosen.arrays.resolve(), chosen.steps, folder, began + chosen.budget, chosen.destructive, facts["hip"]
    )
    found: list[Judged] = []
    print(f"{facts['name']}, torch {facts['torch']}: {len(rows)} rows, at most {chosen.budget:.0f} s", file=sys.stderr)

    def document() -> dict[str, Any]:
        return {
            "schema": 2,
            "kind": "gpu-evidence",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", started),
            "seconds": round(time.monotonic() - began, 1),
            "limit_s": chosen.budget,
            "device": device,
            "steps": chosen.steps,
            "facts": facts,
            "rows": [one.as_json() for one in found],
        }

    for judged in run_rows(rows, setting, lambda: bool(stopped), _announce):
        found.append(judged)
        if not chosen.json:
            _show(judged)
        # After each row: a GPU can take the host with it.
        _write(output, document())
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    if chosen.json:
        print(json.dumps(document(), indent=2))
    else:
        print(f"wrote {output / 'gpu-evidence.json'} and gpu-evidence.md")
    if stopped:
        return INTERRUPTED
    return 1 if any(one.verdict == DIFFERS for one in found) else 0


def _write(output: Path, document: dict[str, Any]) -> None:
    for name, text in (("gpu-evidence.json", json.dumps(document, indent=1)), ("gpu-evidence.md", page(document))):
        unfinished = output / f".{name}.tmp"
        with unfinished.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(output / name)


def _facts(device: str) -> dict[str, Any]:
    """In a process of its own: this one must not hold the device."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    done = subprocess.run(
        [sys.executable, "-c", FACTS, device], env=environ, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _source() -> dict[str, Any]:
    """The revision of the checkout, where there is git and a repository."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"source": None, "source_dirty": None}
    return {"source": head, "source_dirty": bool(changed.strip())}


def _announce(row: Row) -> None:
    if sys.stderr.isatty():
        print(f"{row.name} ...", end="", file=sys.stderr, flush=True)


def _show(judged: Judged) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    seconds = "" if judged.seconds is None else f"{judged.seconds:.1f} s"
    print(f"{judged.row.name:<36} {judged.verdict:<14} {seconds:>8}  {judged.detail}", flush=True)


def _chosen(patterns: Sequence[str]) -> tuple[Row, ...]:
    """The rows whose names match one of the patterns, in order; all without patterns. Exits where one matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in ROWS):
            print(f"gpu-evidence: {pattern}: no such row; --list names them", file=sys.stderr)
            raise SystemExit(2)
    return tuple(row for row in ROWS if not patterns or any(fnmatchcase(row.name, pattern) for pattern in patterns))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_evidence",
        description="See what the app's code does on this GPU, row by row, against the CPU's answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to run, * for any letters (default: all)")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="device (default: cuda where torch sees a GPU)")
    parser.add_argument("--budget", type=_seconds, default=BUDGET_S, metavar="S", help="seconds for all (default: 480)")
    parser.add_argument("--steps", type=_count, default=STEPS, metavar="N", help="steps of a training (default: 200)")
    parser.add_argument("--destructive", action="store_true", help="also rows that break the GPU, unless it is in use")
    parser.add_argument("--arrays", type=Path, default=ARRAYS, metavar="FILE", help="prepared arrays")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="(default: results/gpu-evidence/<time>)")
    parser.add_argument("--list", action="store_true", help="list the rows and what they show; run none")
    parser.add_argument("--json", action="store_true", help="print the document")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 86_400:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")


def _count(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 1 <= int(text) <= 10_000:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not between 1 and 10000")


if __name__ == "__main__":
    sys.exit(main())
