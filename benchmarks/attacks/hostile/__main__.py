"""Run the app, wrapped in the attack that the environment variables name."""

import os
import sys
from pathlib import Path

from benchmarks.attacks.hostile import contents, controls, folders, kinds, links, processes, progress_lines, resources
from benchmarks.attacks.hostile.app import ATTACKS, App

MODULES = (links, kinds, contents, progress_lines, resources, processes, folders, controls)
# The group whose members are no attacks: they show that the bench notices what it should.
CONTROLS = "controls"
NAME, PYTHON, CANARY, EARLIER, TETHER = (
    "ATTACK",
    "ATTACK_PYTHON",
    "ATTACK_CANARY",
    "ATTACK_EARLIER",
    "ATTACK_TETHER",
)


def main() -> None:
    """Carry out the attack, or act as the interpreter for all commands but `train`."""
    values = {name: os.environ.pop(name, "") for name in (NAME, PYTHON, CANARY, EARLIER, TETHER)}
    words, python = sys.argv[1:], values[PYTHON]
    tether = Path(values[TETHER]) if values[TETHER] else None
    app = App(words, python, Path(values[CANARY]), Path(values[EARLIER]), tether)
    chosen = ATTACKS[values[NAME]]
    if app.command != "train":
        os.execv(python, [python, *words])
    if tether:
        # All processes started from here inherit the open file, so the bench finds those left, whatever their names.
        os.set_inheritable(os.open(tether, os.O_RDONLY), True)
    chosen.act(app)
    app.done()


if __name__ == "__main__":
    main()
