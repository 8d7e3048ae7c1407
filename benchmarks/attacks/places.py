"""The place of an attack: results folder, a matrix with a hostile and an honest cell, and files of the host's user.

The files in `canary` must be unchanged afterwards, with their times and modes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attacks.hostile import links
from benchmarks.kill_tester import STAND_IN_BARS
from harness.evidence.records import Results
from harness.matrix.stacks import ExecutorName

DESCRIPTION = "nothing set; the control every other preset is compared with"
MATRIX = f"""\
schema: 2
stacks:
  cpu: {{accelerator: cpu, torch: "2.13.0"}}
presets:
  hostile: {{description: the app of this cell attacks}}
  plain: {{description: "{DESCRIPTION}"}}
workloads:
  attacked:
    description: two epochs of 29 steps
    synthetic: {{sessions: 26}}
    lookback: 20
    epochs: 2
    batch_size: 64
    loader_workers: 0
    time_limit: 40
selections:
  default: {{description: both, stacks: [cpu], presets: all, workload: attacked}}
"""
HOSTILE_CELL, HONEST_CELL = "cpu-hostile", "cpu-plain"
SECRET = "what only the user of the host may write\n"
State = Mapping[str, tuple[str, int, int, bytes]]


@dataclass(frozen=True)
class Place:
    """The folder of one attack; `canary`: the same folder for all attacks, because its path is in the images."""

    folder: Path
    canary: Path

    @property
    def results(self) -> Results:
        """The results of the attack's campaign."""
        return Results(self.folder / "results")

    @property
    def matrix(self) -> Path:
        """The matrix file."""
        return self.folder / "matrix.yaml"

    @property
    def tether(self) -> Path:
        """A file that every process of the attack holds open."""
        return self.folder / "tether"

    def data_options(self, executor: ExecutorName) -> list[str]:
        """Return the data options: none for containers; for processes, a file that the stand-in does not read."""
        if executor == "docker":
            return []
        bars = self.folder / "bars.csv"
        bars.write_text(STAND_IN_BARS, encoding="utf-8")
        return ["--data", str(bars)]

    def make(self) -> None:
        """Create the place, or empty it."""
        remove_tree(self.folder)
        self.folder.mkdir(parents=True)
        self.matrix.write_text(MATRIX, encoding="utf-8")
        self.tether.touch()
        make_canary(self.canary)


def make_canary(folder: Path) -> None:
    """Create the files of the host's user, which no attack may touch."""
    remove_tree(folder)
    checkpoints = folder / "training" / "old_checkpoints"
    checkpoints.mkdir(parents=True)
    for place in (folder / links.SECRET, folder / "training" / "model.pt", checkpoints / "step-000000001.pt"):
        place.write_text(SECRET, encoding="utf-8")
        place.chmod(0o600)


def state_of(folder: Path) -> State:
    """Return mode, time, owner and content of everything in a folder, by name."""
    state = {}
    for place in (folder, *sorted(folder.rglob("*"))):
        seen = place.lstat()
        plain = place.is_file() and not place.is_symlink()
        content = place.read_bytes() if plain else b""
        state[str(place.relative_to(folder))] = (oct(seen.st_mode), seen.st_mtime_ns, seen.st_uid, content)
    return state


def changed(before: State, after: State) -> list[str]:
    """Return the names of all that differs."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def remove_tree(folder: Path) -> None:
    """Remove a folder of any depth and mode: 3,000 levels are too many for recursion and for path names."""
    if folder.is_dir() and not folder.is_symlink():
        # root is not bound by modes, and `rm` works relative to open folders.
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", "--one-file-system", str(folder))
