"""Run the kit's rows: `python -m benchmarks.gpu_evidence`."""

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
# The app need not be installed, so that any Python can run the kit.
sys.path[:0] = [str(ROOT), str(ROOT / "app")]

from benchmarks.gpu_evidence.page import page  # noqa: E402
from benchmarks.gpu_evidence.rows import ROWS, Row  # noqa: E402
from benchmarks.gpu_evidence.run import DIFFERS, START_S, Judged, Setting, device_that_is_there, run_rows  # noqa: E402

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
  python -m benchmarks.gpu_evidence --destructive device-assert illegal-access endless-kernel
                                                            what breaks the GPU: best in a call of its own
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows, write the findings, and return the exit status."""
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
    try:
        there = device_that_is_there()
        device = chosen.device or there
        if device == "cuda" and there == "cpu":
            print("gpu-evidence: --device cuda: torch sees no GPU; see `vpoc probe --device cuda`", file=sys.stderr)
            return NO_DEVICE
        facts = {**_facts(device), **_source()}
    except subprocess.TimeoutExpired:
        print(f"gpu-evidence: torch did not start within {START_S} s on this device", file=sys.stderr)
        return NO_DEVICE
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or "no word").splitlines()[-1]
        print(f"gpu-evidence: torch does not start in {sys.executable}: {said}", file=sys.stderr)
        return NO_DEVICE
    return _measure(rows, device, facts, chosen)


def _measure(rows: Sequence[Row], device: str, facts: dict[str, Any], chosen: argparse.Namespace) -> int:
    started, began = time.gmtime(), time.monotonic()
    usual = ROOT / "results" / "gpu-evidence" / time.strftime("%Y%m%dT%H%M%SZ", started)
    output = (chosen.output or usual).resolve()
    folder = output / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    stopped: list[int] = []

    def stop(signum: int, _frame: FrameType | None) -> None:
        stopped.append(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
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
        # Written after each row, because a GPU can take the host down with it.
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
    """Return the facts of the device; a child process finds them, because this process must not hold the device."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    done = subprocess.run(
        [sys.executable, "-c", FACTS, device], env=environ, capture_output=True, text=True, check=True, timeout=START_S
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _source() -> dict[str, Any]:
    """Return the revision of the checkout, or None without git or without a repository."""
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
    """Return the rows that match one of the patterns, in order, or all rows; exit if a pattern matches none."""
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
