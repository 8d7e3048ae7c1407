"""Run the app with the attack that the environment names around it."""

import os
import sys
from pathlib import Path

from benchmarks.attacks.hostile import contents, controls, folders, kinds, links, processes, progress_lines, resources
from benchmarks.attacks.hostile.app import ATTACKS, App

MODULES = (links, kinds, contents, progress_lines, resources, processes, folders, controls)
# A group that shows that the bench sees; no attacks.
CONTROLS = "controls"
NAME, PYTHON, CANARY, EARLIER, TETHER = (
    "ATTACK",
    "ATTACK_PYTHON",
    "ATTACK_CANARY",
    "ATTACK_EARLIER",
    "ATTACK_TETHER",
)


def main() -> None:
    """Attack, or be the interpreter that was asked for."""
    values = {name: os.environ.pop(name, "") for name in (NAME, PYTHON, CANARY, EARLIER, TETHER)}
    words, python = sys.argv[1:], values[PYTHON]
    tether = Path(values[TETHER]) if values[TETHER] else None
    app = App(words, python, Path(values[CANARY]), Path(values[EARLIER]), tether)
    chosen = ATTACKS[values[NAME]]
    if app.command != "train":
        os.execv(python, [python, *words])
    if tether:
        # Inherited by all that is started from here: it shows from outside what is left, whatever its name.
        os.set_inheritable(os.open(tether, os.O_RDONLY), True)
    chosen.act(app)
    app.done()


if __name__ == "__main__":
    main()
