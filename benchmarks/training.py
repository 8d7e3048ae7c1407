"""Measure how fast training is, compared with Lightning and with a loop as in tutorials, each with one thread.

Every figure is a ratio of times from one execution: a round does every job once, every other round in reverse order,
and the figure is the median of the rounds' ratios. The app trains as `vpoc train` does, with progress, memory monitor,
number checks and checkpoints. The page is printed, and written to docs/evidence/training-speed.md.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks import pages
from benchmarks.features import APP_PYTHON, BENCH, KEEPING_BYTECODE, Row, command, listed, markdown, short, synthetic
from benchmarks.pages import hardware
from benchmarks.training_lightning import BATCH, EPOCHS, HIDDEN
from benchmarks.training_worker import PREDICTED
from harness.base.files.hashes import file_hash
from harness.base.paths import CHECKOUT
from harness.environments.python.pins import lock_file, try_sources
from harness.environments.python.uv_process import uv
from harness.matrix.load import load_matrix

SESSIONS = 1014
SIZES = (8, 256, 8192)
OVER_LIGHTNING = {8: 3.0, 256: 5.0, 8192: 25.0}
OVER_TEXTBOOK = {8: 3.0, 256: 4.0, 8192: 25.0}
PLAIN_OVER_TEXTBOOK = 0.95
WHOLE_SESSIONS = 400
OVER_LIGHTNING_WHOLE = 8.0
PREDICTED_ROWS = 341_190
PREDICT_MINUTES = {"attention": 14.0, "attention bf16": 8.0}
"""Largest minutes for the bar rows of SESSIONS sessions; bfloat16 only counts where the CPU computes it faster."""
FLOOR = "import matplotlib.figure, polars, torch"
CHUNK_ROWS = 65_536
LARGER = 4
PEERS = Path(__file__).with_name("training_peers.txt")
WORKER = Path(__file__).with_name("training_worker.py")
WHOLE = Path(__file__).with_name("training_lightning.py")
PAGE = CHECKOUT / "docs" / "evidence" / "training-speed.md"
WHAT = {
    "app plain": "`vpoc train --loop plain --loader-workers 0`",
    "app resident": "`vpoc train --loop resident`",
    "watching": "the same, with clocks around what watches it",
    "textbook": "DataLoader with its defaults, Adam, the loss read after every step",
    "textbook with weights": "the same, a weight per sample in the loss, `clip_grad_norm_` to see that it is finite",
    "Lightning": "`Trainer(barebones=True)`, timed from start to end of training itself",
    "app whole": f"`vpoc train`, whole command, {WHOLE_SESSIONS} sessions: from the CSV to model and curves",
    "Lightning whole": "a script that reads samples and trains, with validation and a checkpoint after every epoch",
    "app predict": "`vpoc predict` from features to probabilities, rows per second",
    "imports": "`python -c 'import torch'`, or `import pytorch_lightning`, with the interpreter of each",
    "floor": f"`python -c '{FLOOR}'`: the packages that the whole command uses, and nothing done with them",
}

COMMANDS = ("app whole", "Lightning whole", "imports, app", "imports, Lightning", "floor")
"""Jobs that are whole commands; the page shows their seconds."""

Measured = dict[str, float]
Job = Callable[[], Measured]


@dataclass
class Series:
    """The measurements of every job, by round: seconds per sample, and the share spent on watching the training."""

    taken: dict[str, list[Measured]] = field(default_factory=dict)
    peaks: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def run(self, jobs: dict[str, Job], rounds: int) -> None:
        """Do every job once a round, every other round in reverse order."""
        for number in range(rounds):
            for name in list(jobs)[:: 1 if number % 2 == 0 else -1]:
                self.taken.setdefault(name, []).append(jobs[name]())
            told = ", ".join(f"{name} {short(1 / self.taken[name][-1]['seconds'])}/s" for name in jobs)
            print(f"  round {number + 1}: {told}", file=sys.stderr, flush=True)

    def over(self, slow: str, fast: str) -> list[float]:
        """Return, by round, samples per second of `fast` over those of `slow`."""
        pairs = zip(self.taken[slow], self.taken[fast], strict=True)
        return [a["seconds"] / b["seconds"] for a, b in pairs]

    def less(self, job: str, other: str) -> list[float]:
        """Return, by round, seconds of `job` minus those of `other`."""
        pairs = zip(self.taken[job], self.taken[other], strict=True)
        return [a["seconds"] - b["seconds"] for a, b in pairs]


def peers_python() -> Path:
    """Return the interpreter with Lightning and the torch of the cpu stack, installed as locked."""
    stack = load_matrix(CHECKOUT / "matrix.yaml").stacks["cpu"]
    lock = lock_file(stack)
    folder = BENCH / "training-peers"
    stamp, python = folder / "lock", folder / "bin" / "python"
    wanted = f"{file_hash(lock)}\n{file_hash(PEERS)}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        uv("venv", "--quiet", "--clear", "--python", stack.python, folder)
        how = ("--quiet", "--require-hashes", "--compile-bytecode", "--only-binary", ":all:", "--python", python)
        try_sources(stack, "pip", "sync", *how, lock, PEERS)
        stamp.write_text(wanted, encoding="utf-8")
    return python


@contextmanager
def worker(python: Path, kind: str, csv: Path, series: Series) -> Iterator[dict[str, Job]]:
    """Yield the jobs of a process that runs a job when it is asked to; see training_worker.py."""
    with pages.worker(python, WORKER, kind, csv) as (ready, done):
        series.versions |= ready["versions"]
        yield {name: partial(done, name) for name in ready["jobs"]}


def race(csv: Path, rounds: int, series: Series) -> None:
    """Measure all loops in turn."""
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        # The app's worker comes first, because it leaves the samples for the others.
        for kind in ("app", "prediction", "plain", "lightning"):
            python = peers_python() if kind == "lightning" else APP_PYTHON
            jobs |= stack.enter_context(worker(python, kind, csv, series))
        by_race = sorted(jobs, key=lambda name: name.partition(", ")[2])
        series.run({name: jobs[name] for name in by_race}, rounds)


def whole(place: Path, rounds: int, series: Series) -> None:
    """Measure whole commands on one core: `vpoc train`, and Lightning on samples that are prepared already."""
    csv = synthetic(place, WHOLE_SESSIONS)
    samples = csv.with_suffix(".whole.npz")
    command(WHOLE, "samples", csv, samples)
    words = ["--data", csv, "--rows", "bar", "--loop", "resident", "--batch-size", BATCH, "--epochs", EPOCHS]
    words += ["--hidden-layers", ",".join(map(str, HIDDEN)), "--keep", "last", "--patience", 0, "--threads", 1]
    peers = peers_python()

    def timed(python: Path, *words: Any) -> Measured:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            told = [str(folder if word is None else word) for word in words]
            began = time.perf_counter()
            subprocess.run([python, *told], check=True, capture_output=True, env=KEEPING_BYTECODE)
            return {"seconds": time.perf_counter() - began}

    series.run(
        {
            "app whole": partial(timed, APP_PYTHON, "-m", "vpoc", "train", *words, "--output", None),
            "Lightning whole": partial(timed, peers, WHOLE, "train", samples, None),
            "imports, app": partial(timed, APP_PYTHON, "-c", "import torch"),
            "imports, Lightning": partial(timed, peers, "-c", "import pytorch_lightning"),
            "floor": partial(timed, APP_PYTHON, "-c", FLOOR),
        },
        rounds,
    )


def chunked(place: Path, rounds: int, series: Series) -> None:
    """Measure the peak memory of training in chunks, from features of files of different size."""
    trainings = {}
    for times in (1, LARGER):
        csv = synthetic(place, times * SESSIONS // LARGER)
        features = csv.with_suffix(".parquet")
        command("-m", "vpoc", "features", "--data", csv, "--rows", "bar", "--output", features)
        words = ["--data", csv, "--features", features, "--rows", "bar", "--output", place / f"trained-{times}"]
        words += ["--chunk-rows", CHUNK_ROWS, "--loop", "resident", "--batch-size", 8192, "--epochs", 1]
        trainings[f"{times} x"] = words
    for _ in range(rounds):
        for name, words in trainings.items():
            _, peak = command("-m", "vpoc", "train", *map(str, words))
            series.peaks.setdefault(name, []).append(peak)


def table(series: Series) -> list[Row]:
    """Return every row of the table, measured or not."""
    lines = []
    for against, goals in (("Lightning", OVER_LIGHTNING), ("textbook", OVER_TEXTBOOK)):
        for size, goal in goals.items():
            each = series.over(f"{against}, batch {size}", f"app resident, batch {size}")
            loop = against if against == "Lightning" else "the textbook loop"
            lines.append(Row(f"MLP, batch {size}: `--loop resident` over {loop}", each, "at least", goal))
    for against, loop in (("textbook", "the textbook loop"), ("textbook with weights", "one that computes as much")):
        for size in SIZES:
            each = series.over(f"{against}, batch {size}", f"app plain, batch {size}")
            lines.append(Row(f"MLP, batch {size}: `--loop plain` over {loop}", each, "at least", PLAIN_OVER_TEXTBOOK))
    each = series.over("Lightning whole", "app whole")
    what = f"`vpoc train`, whole command, {WHOLE_SESSIONS} sessions, {EPOCHS} epochs, batch {BATCH}: over Lightning"
    lines.append(Row(what, each, "at least", OVER_LIGHTNING_WHOLE))
    app, lightning = series.less("app whole", "imports, app"), series.less("Lightning whole", "imports, Lightning")
    less = [a / b for a, b in zip(lightning, app, strict=True)]
    lines.append(Row("the same, each less its imports", less))
    lines.append(
        Row("Lightning, whole, over only the imports of `vpoc train`", series.over("Lightning whole", "floor"))
    )
    lines.append(Row("`vpoc train`, whole command, over only its imports", series.over("app whole", "floor")))
    for loop in ("plain", "resident"):
        each = series.over("textbook, attention", f"app {loop}, attention")
        lines.append(Row(f"attention 2.9 M: `--loop {loop}` over the textbook loop", each, "at least", 1.0))
        each = series.over(f"app {loop}, attention", f"app {loop}, attention bf16")
        lines.append(Row(f"attention 2.9 M, `--loop {loop}`: bf16 over fp32", each, "at least", 1.4))
    for kind, minutes in PREDICT_MINUTES.items():
        taken = series.taken[f"app predict, {kind}"]
        each = [measured["seconds"] * PREDICTED_ROWS / 60 for measured in taken]
        what = f"{kind} 2.9 M: `vpoc predict` of {PREDICTED_ROWS:,} rows on one core, from {PREDICTED[kind]:,} of them"
        lines.append(Row(what, each, "at most", minutes, "min"))
    for loop in ("resident", "plain"):
        shares = [100 * measured["share"] for measured in series.taken[f"watching, {loop}, batch 256"]]
        what = f"progress, memory monitor and number checks, `--loop {loop}`, batch 256, of the time of a step"
        lines.append(Row(what, shares, "at most", 1.0, "%"))
    peaks = series.peaks
    growth = [large / small for small, large in zip(*peaks.values(), strict=True)] if peaks else []
    what = f"peak memory of `vpoc train --chunk-rows {CHUNK_ROWS}`: a file {LARGER} x as long over a short one"
    lines.append(Row(what, growth, "at most", 1.1, why="needs --chunks"))
    return lines


def page(series: Series, loads: list[float]) -> str:
    """Return the page as Markdown."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {word for line in lines if line.startswith("flags") for word in line.split() if word.endswith("_bf16")}
    half = ", ".join(sorted(found)) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in series.versions.items())
    rates = {
        name: [measured["seconds"] if name in COMMANDS else 1 / measured["seconds"] for measured in taken]
        for name, taken in series.taken.items()
    }
    peaks = [f"{name}: {listed([peak / 1e6 for peak in taken])} MB" for name, taken in series.peaks.items()]
    return "\n".join(
        [
            "# Speed of training",
            "",
            "`make bench-training` wrote this page (`ARGS=--chunks`: also the memory of training in chunks). Figures",
            "are ratios of times taken in one run, in alternating order. Each is the median of the rounds beside it.",
            "",
            f"Machine: {hardware()}; load average {short(loads[0])} before, {short(loads[1])} after. {versions}.",
            f"Instructions for bfloat16: {half}.",
            f"Data: rows per bar of `vpoc synth --sessions {SESSIONS}`. Every loop has one thread, no loader process.",
            "MLP is 54-32-16-1; attention has batches of 32. The app's progress, memory monitor, number checks and",
            "checkpoints are on.",
            *([f"Peak memory by size of the file: {'; '.join(peaks)}."] if peaks else []),
            "",
            *markdown(["what", "goal", "measured", "met", "rounds"], [row.cells() for row in table(series)]),
            "",
            *markdown(
                ["samples per second; of whole commands seconds", "what it is", "median", "rounds"],
                [
                    [name, WHAT[name.partition(", ")[0]], short(median(each)), listed(each)]
                    for name, each in rates.items()
                ],
            ),
            "",
        ]
    )


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, help="Rounds of the race.")
@click.option("--chunks", is_flag=True, help="Also the memory of training in chunks.")
@click.option("--output", type=click.Path(path_type=Path), help="Page to write.  [default: in docs]")
def main(rounds: int, chunks: bool, output: Path | None) -> None:
    """Measure, print the page, and write it."""
    series, load = Series(), os.getloadavg()[0]
    BENCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BENCH) as place:
        race(synthetic(Path(place), SESSIONS), rounds, series)
        whole(Path(place), rounds, series)
        if chunks:
            chunked(Path(place), min(rounds, 3), series)
    text = page(series, [load, os.getloadavg()[0]])
    print(text)
    (output or PAGE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
