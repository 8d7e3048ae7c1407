"""Attack the harness with a hostile app, in real containers and as processes. Writes docs/evidence/attacks.md.

Each attack is a campaign of two runs, of the hostile app and then of an honest app, under a watchdog and with limited
memory. The image of the hostile app is made from the real image of the cell `cpu-plain`. A Docker engine is needed,
unless `--executor process` is given. With `--only` or `--executor`, the page is changed only if `--update` is given.
"""

import argparse
import datetime
import fnmatch
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.attacks.campaign import REAL
from benchmarks.attacks.hostile.__main__ import CONTROLS
from benchmarks.attacks.hostile.app import ATTACKS, Attack
from benchmarks.attacks.images import attack_image, hostile_image, process_launcher, remove_image, stand_in_image
from benchmarks.attacks.page import merged, read_rows, write_page
from benchmarks.attacks.places import HONEST_CELL, MATRIX, Place, make_canary, remove_tree
from benchmarks.attacks.run import Row, run_attack
from benchmarks.kill_tester import write_stand_in
from harness.base.files.locks import locked
from harness.base.paths import CHECKOUT
from harness.environments.docker.build import ensure_cell_image
from harness.evidence.files.run_folder import RunFolder
from harness.host.engine import Engine, find_engine
from harness.matrix.cells import Matrix
from harness.matrix.load import Given, load_matrix
from harness.matrix.stacks import ExecutorName
from harness.rehearsal.stand_in_app import SLOW

BY_SIGNAL = 128
EARLIER_STEP_SECONDS = 0.5


class Bench:
    """Runs attacks, each in its own place in `folder`."""

    def __init__(self, folder: Path, executors: Sequence[ExecutorName], base: str | None) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        self._executors = executors
        make_canary(self.canary)
        file = folder / "matrix.yaml"
        file.write_text(MATRIX, encoding="utf-8")
        matrix = load_matrix(file, Given(base))
        self._engine = find_engine() if "docker" in executors else None
        self._stand_in = folder / "stand-in"
        write_stand_in(self._stand_in)
        for executor in executors:
            self._run_honest(executor)
        self._images = self._make_images(matrix) if self._engine else ("", "")

    def rows(self, attacks: Sequence[Attack]) -> Iterator[Row]:
        """Carry out the attacks one after the other and yield their rows."""
        for attack in attacks:
            for executor in self._executors:
                if executor in attack.executors:
                    yield self._row(attack, executor)

    def close(self, *, keep: bool) -> None:
        """Remove the images and the folder; with `keep`, keep the folder."""
        if self._engine:
            for name in ("base", "stand-in"):
                remove_image(self._engine, name)
        if not keep:
            remove_tree(self.folder)

    def _make_images(self, matrix: Matrix) -> tuple[str, str]:
        engine = self._reached()
        image = ensure_cell_image(engine, matrix.cells[HONEST_CELL], print)
        hostile = hostile_image(engine, image.id, self.canary, self._earlier("docker"))
        return hostile, stand_in_image(engine, image.id)

    def _reached(self) -> Engine:
        if self._engine is None:
            raise SystemExit("python -m benchmarks.attacks: no Docker engine answers; --executor process needs none")
        return self._engine

    def _run_honest(self, executor: ExecutorName) -> None:
        """Run the honest app once: all attacks use its reference, and its files serve as those of an earlier run."""
        if self._earlier(executor).is_dir():
            return
        place = Place(self.folder / f"honest-{executor}", self.canary)
        place.make()
        if executor == "process":
            # The steps of a real earlier run took time, so those of the stand-in must take some too.
            (place.folder / SLOW).write_text(f"{EARLIER_STEP_SECONDS}\n", encoding="utf-8")
        results = place.results
        words = ["--matrix", str(place.matrix), "--results", str(results.folder), "run", HONEST_CELL]
        # In processes the honest app is the stand-in, which trains in no time.
        honest = REAL if executor == "docker" else str(self._stand_in)
        command = [sys.executable, "-m", "benchmarks.attacks.campaign", honest, honest, *words]
        command += ["--executor", executor, *place.data_options(executor)]
        subprocess.run(command, check=True, capture_output=True, cwd=CHECKOUT)
        (run_id,) = results.finished()
        run, earlier = results.run_folder(run_id), self._earlier(executor)
        work = run / "work" if (run / "work").is_dir() else run
        earlier.mkdir()
        for name in ("result.json", "progress-0.jsonl"):
            shutil.copyfile(work / name, earlier / name)
        shutil.copytree(work / "output", earlier / "output")
        for model in RunFolder(run).path.glob("kept/model-1.pt"):
            shutil.copyfile(model, earlier / "output" / "model.pt")
        shutil.copyfile(RunFolder(run).record, earlier / "record.json")

    def _earlier(self, executor: ExecutorName) -> Path:
        return self.folder / f"earlier-{executor}"

    def _row(self, attack: Attack, executor: ExecutorName) -> Row:
        place = Place(self.folder / f"{attack.name}-{executor}", self.canary)
        place.make()
        try:
            if executor == "process":
                launcher = place.folder / "python"
                process_launcher(
                    launcher, self._stand_in, attack.name, self.canary, self._earlier(executor), place.tether
                )
                return run_attack(attack, executor, place, (str(launcher), str(self._stand_in)), None)
            engine = self._reached()
            hostile, stand_in = self._images
            image = attack_image(engine, hostile, attack.name)
            try:
                return run_attack(attack, executor, place, (image, stand_in), engine)
            finally:
                remove_image(engine, attack.name)
        finally:
            remove_tree(place.folder)


def main() -> None:
    """Carry out the chosen attacks, print each result, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="attacks of these names")
    parser.add_argument("--executor", choices=("docker", "process"), help="of one executor alone")
    parser.add_argument(
        "--base",
        default=os.environ.get("MATRIX_BASE"),
        help="base image of the cell (default: that of the matrix, or MATRIX_BASE)",
    )
    parser.add_argument("--folder", type=Path, help="where to work; it is kept, and what is honest is not run again")
    parser.add_argument("--update", action="store_true", help="replace the rows of the page that are asked for")
    parser.add_argument("--trees", type=float, metavar="MINUTES", help="only try that long what reads random trees")
    parser.add_argument("--list", action="store_true", help="print the attacks, and carry out none")
    given = parser.parse_args()
    attacks = [one for one in ATTACKS.values() if one.group != CONTROLS]
    chosen = [one for one in attacks if not given.only or any(_is(one, word) for word in given.only)]
    if given.list:
        for attack in chosen:
            print(f"{attack.name:36} {attack.group:10} {'+'.join(attack.executors):16} {attack.what}")
        return
    if given.trees:
        write_page(read_rows(), trees=_random_trees(given.trees))
        return
    executors: tuple[ExecutorName, ...] = (given.executor,) if given.executor else ("docker", "process")
    # Exit normally on SIGTERM, so that started processes are ended and images are removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(BY_SIGNAL + number))
    # A short path, because sockets are created in this folder, and because the images contain the path.
    folder = given.folder or Path(tempfile.mkdtemp(prefix="vpoc-attacks-", dir="/tmp"))
    folder.mkdir(exist_ok=True)
    if given.base:
        os.environ["MATRIX_BASE"] = given.base
    bench = Bench(folder, executors, given.base)
    rows = []
    began = time.monotonic()
    try:
        for row in bench.rows(chosen):
            rows.append(row)
            print(_line(row), flush=True)
            if given.update:
                with locked(folder.parent / "vpoc-attacks.lock"):
                    write_page(merged(read_rows(), [row]))
            elif not given.only and not given.executor:
                write_page(rows)
    finally:
        bench.close(keep=given.folder is not None)
    bad = [row for row in rows if row.wrong]
    print(f"{len(rows)} attacks, {len(bad)} not ok, {time.monotonic() - began:.0f} s")
    sys.exit(1 if bad else 0)


def _random_trees(minutes: float) -> dict[str, object]:
    """Run the test with random trees in `work/` for that many minutes, and return how many trees it tried."""
    test = "tests/harness/base/files/test_untrusted_tree.py"
    command = [sys.executable, "-m", "pytest", test, "-k", "random_trees", "--capture=no"]
    environment = {**os.environ, "MINUTES": str(minutes)}
    done = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT, env=environment)
    count = int(done.stderr.rpartition(" random trees")[0].split()[-1])
    return {"count": count, "minutes": minutes, "on": str(datetime.datetime.now(datetime.UTC).date())}


def _is(attack: Attack, word: str) -> bool:
    return fnmatch.fnmatch(attack.name, word) or attack.group == word


def _line(row: Row) -> str:
    said = f"{row.outcome} ({row.diagnosis})" if row.diagnosis else row.outcome
    verdict = f"NOT OK: {'; '.join(row.wrong)}" if row.wrong else "ok"
    return f"{row.attack} [{row.executor}] {said} {row.seconds:.1f} s, {row.memory / 1e6:.0f} MB: {verdict}"


if __name__ == "__main__":
    main()
