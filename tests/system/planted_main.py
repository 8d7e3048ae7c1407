"""Run `matrix` with environments that a test simulates: `planted_main.py FOLDER WORDS ...`.

FOLDER has the simulated host (`host`) and the world (`world.json`); an interpreter of each stack is written there.
"""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from harness.base.contract import CONTRACT
from harness.campaign.bench import bench
from harness.cli.main import main
from harness.environments import capabilities, environment_hashes, verifier
from harness.environments.environment import Environment
from harness.matrix.stacks import Stack

FOLDER = Path(sys.argv[1])
IDENTITY = {"interpreter": "i", "lock": "l", "app": "a"}


def ensure(stack: Stack, _notify: Callable[[str], None] = lambda _: None) -> Environment:
    """Return the stand-in's environment of a stack."""
    python = FOLDER / "pythons" / stack.name
    if not python.exists():
        python.parent.mkdir(exist_ok=True)
        program = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("stand_in_dual.py"))])
        given = shlex.join([str(FOLDER / "host"), str(FOLDER / "world.json"), stack.name])
        python.write_text(f'#!/bin/sh\nexec {program} {given} "$@"\n', encoding="utf-8")
        python.chmod(0o755)
    return Environment(python, {**IDENTITY, "lock": stack.name}, {}, stack.device, version="3.11.2", contract=CONTRACT)


if __name__ == "__main__":
    for module in (bench, verifier):
        module.ensure_environment = ensure  # type: ignore[attr-defined]
    environment_hashes.identify = lambda stack: {**IDENTITY, "lock": stack.name}  # type: ignore[attr-defined]
    # Every stack counts as installed already, so that free disk space of the test's machine does not matter.
    made = (FOLDER / "made").read_text(encoding="utf-8").split()
    capabilities.is_made = lambda stack: stack.name in made  # type: ignore[attr-defined]
    sys.argv = ["matrix", *sys.argv[2:]]
    main()
