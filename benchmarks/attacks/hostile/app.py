"""The app of an image, wrapped in an attack, and the list of all attacks."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Texts that no honest file contains: where they appear raw in a page or on a terminal, they were not escaped.
HTML = "<img src=x onerror=planted()>"
ESCAPES = "\x1b]0;planted\x07\x1b[2Jplanted"
DONE = "attack-done"
WAIT_SECONDS = 0.02


@dataclass(frozen=True)
class Attack:
    """An attack: what it does, and what the record of its run may say.

    `may_complete`: why a completed run is still right; None if the run must not complete.
    `diagnoses`: the only diagnoses that are right.
    `shown`: the attack's text reaches pages and terminals, which the bench then inspects.
    """

    name: str
    group: str
    what: str
    act: Callable[["App"], None]
    executors: tuple[str, ...] = ("process",)
    may_complete: str | None = None
    diagnoses: tuple[str, ...] = ()
    shown: bool = False


ATTACKS: dict[str, Attack] = {}
BOTH = ("docker", "process")
# Attacks on the host itself, which only a contained process may try.
CONTAINED = ("docker",)
UNCHANGED = "nothing that the result claims is changed"


def register(name: str, group: str, what: str, act: Callable[["App"], None], **more: Any) -> None:
    """Add an attack to the list."""
    if name in ATTACKS:
        raise ValueError(name)
    ATTACKS[name] = Attack(name, group, what, act, **more)


def attack(what: str, **more: Any) -> Callable[[Callable[["App"], None]], Callable[["App"], None]]:
    """Return a decorator that adds a function to the list, under its own name and in the group of its module."""

    def enter(act: Callable[["App"], None]) -> Callable[["App"], None]:
        register(act.__name__.replace("_", "-"), act.__module__.rpartition(".")[2], what, act, **more)
        return act

    return enter


class App:
    """The real app inside the attack, with the run's folder `work` as the current folder.

    `words`: the command line after the interpreter.
    `canary`: a folder of the host's user, outside of the run.
    `earlier`: a folder with what an honest run left.
    `tether`: a file that tells the bench that the attack was carried out, even if the run's folder is gone; None in
        containers.
    """

    def __init__(self, words: list[str], python: str, canary: Path, earlier: Path, tether: Path | None = None) -> None:
        self.words = words
        self.canary = canary
        self.earlier = earlier
        self.work = Path.cwd()
        self._python = python
        self._tether = tether
        self._said = False

    @property
    def command(self) -> str:
        """The command of the app, or an empty string."""
        return self.words[2] if self.words[:2] == ["-m", "vpoc"] and len(self.words) > 2 else ""

    @property
    def run_folder(self) -> Path:
        """The folder that belongs to the harness if the app can reach it, else `work`."""
        return next((place for place in (self.work, self.work.parent) if (place / "intent.json").exists()), self.work)

    def words_with(self, **changes: str) -> list[str]:
        """Return the command line with other values of options."""
        words = list(self.words)
        for name, value in changes.items():
            words[words.index(f"--{name.replace('_', '-')}") + 1] = value
        return words

    def start(self, words: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Start the real app."""
        return subprocess.Popen([self._python, *(words or self.words)], close_fds=False)

    def run(self, words: list[str] | None = None) -> None:
        """Run the real app; if the app fails, end the attack with its exit status."""
        if status := self.start(words).wait():
            sys.exit(status)

    @contextmanager
    def training(self, step: int = 1) -> Iterator[None]:
        """Run the real app; the body of the `with` statement runs while the app trains, from this step on."""
        process = self.start()
        self.wait_for_step(step, process)
        yield
        if status := process.wait():
            sys.exit(status)

    def run_unseen(self, step: int | None = None) -> Path:
        """Run the real app, to a step or to its end, with another folder for progress and result; return the folder."""
        folder = self.work / "scratch" / "unseen"
        folder.mkdir(parents=True, exist_ok=True)
        process = self.start(self.words_with(run_dir=str(folder)))
        if step is None:
            if status := process.wait():
                sys.exit(status)
        else:
            self.wait_for_step(step, process, folder)
            process.kill()
            process.wait()
        return folder

    def wait_for_step(self, step: int, process: subprocess.Popen[bytes], folder: Path | None = None) -> None:
        """Wait until the real app has made that many steps or has ended."""
        while process.poll() is None:
            lines = self.progress(folder)
            if any(line["phase"] not in ("import", "init", "data", "features", "first-step") for line in lines) and (
                lines[-1]["done"] >= step or lines[-1]["phase"] != "step"
            ):
                return
            time.sleep(WAIT_SECONDS)

    def progress(self, folder: Path | None = None) -> list[dict[str, Any]]:
        """Return the complete progress lines."""
        try:
            text = ((folder or self.work) / "progress-0.jsonl").read_text(encoding="utf-8")
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def result(self, folder: Path | None = None) -> dict[str, Any]:
        """Return the real app's result."""
        return dict(json.loads(((folder or self.work) / "result.json").read_text(encoding="utf-8")))

    def write_result(self, value: dict[str, Any]) -> None:
        """Write a value as the result."""
        (self.work / "result.json").write_text(json.dumps(value), encoding="utf-8")

    def change_result(self, **changes: Any) -> None:
        """Replace some values of the result."""
        self.write_result({**self.result(), **changes})

    def done(self) -> None:
        """Report once that the attack was carried out, or is about to be."""
        if self._said:
            return
        self._said = True
        if self._tether:
            self._tether.write_text(DONE, encoding="utf-8")
        print(f"[{DONE}]", flush=True)
        with suppress(OSError):
            (self.work / DONE).touch()


def replace(place: Path) -> Path:
    """Delete whatever has that name, so that something else can be put there."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def link(place: Path, target: Path | str) -> None:
    """Replace something by a symbolic link."""
    replace(place).symlink_to(target)


def daemon() -> bool:
    """Fork a process that has no tie to its parents; return True in that process."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True
