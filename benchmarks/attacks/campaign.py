"""Run `matrix` with a hostile environment for the cells of the preset `hostile`, in its own process for each attack.

`python -m benchmarks.attacks.campaign HOSTILE HONEST WORD...` does what `matrix WORD...` does. HOSTILE and HONEST are
ids of images or paths of interpreters; HONEST may be `real`, the cell's own environment. The harness runs as usual,
with two differences, because its own limits are longer than a run of the bench: its memory is limited, and it judges a
stall by the limits that it otherwise uses after five completed runs, with still shorter ones for steps and checkpoints.
"""

import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.attacks.places import DESCRIPTION
from harness.campaign.bench.bench import Bench
from harness.cli.main import main
from harness.environments.environment import Environment
from harness.environments.verifier import Verifier
from harness.host.engine_errors import Notify
from harness.matrix.cells import Cell
from harness.run.watch import limits

MEMORY_LIMIT = 4 << 30
STEP_LIMIT_SECONDS = 10.0
HOSTILE, HONEST, REAL = "hostile", "plain", "real"
EnvironmentOf = Callable[[Bench, Cell, Notify], Environment]
VerifierOf = Callable[[Bench, Notify], Verifier]


def with_environments(real: EnvironmentOf, hostile: str, honest: str) -> EnvironmentOf:
    """Return a function that gives cells their environment, and those of the preset `hostile` the hostile one."""

    def environment(bench: Bench, cell: Cell, notify: Notify = lambda _: None) -> Environment:
        plain = cell.preset.model_copy(update={"name": HONEST, "description": DESCRIPTION})
        # The hostile environment has the identity of the real one, like an image whose labels lie.
        made = real(bench, replace(cell, preset=plain), notify)
        if cell.preset.name == HOSTILE:
            return _in(made, hostile)
        if honest == REAL:
            return made
        # A hostile container wraps the real app, so the stand-in, whose results differ, needs an identity of its own.
        identity = {**made.identity, "app": "a stand-in"} if made.image else made.identity
        return _in(replace(made, identity=identity), honest)

    return environment


def with_verifier(real: VerifierOf, honest: str) -> VerifierOf:
    """Return a function that gives the environment for verification; in processes, it is the honest stand-in."""

    def verifier(bench: Bench, notify: Notify = lambda _: None) -> Verifier:
        made = real(bench, notify)
        if honest == REAL or made.environment is None or made.environment.image:
            return made
        bench._verifier = replace(made, environment=_in(made.environment, honest))
        return bench._verifier

    return verifier


def _in(made: Environment, chosen: str) -> Environment:
    return replace(made, image=chosen) if made.image else replace(made, python=Path(chosen))


if __name__ == "__main__":
    _, bad, good, *words = sys.argv
    Bench.environment = with_environments(Bench.environment, bad, good)  # type: ignore[method-assign, assignment]
    Bench.verifier = with_verifier(Bench.verifier, good)  # type: ignore[method-assign, assignment]
    limits.RUNS_FOR_KNOWN_LIMITS = 0
    # States are kept between steps, so the limit for steps must leave time for that.
    limits.KNOWN_LIMITS = {**limits.KNOWN_LIMITS, "step": STEP_LIMIT_SECONDS, "checkpoint": STEP_LIMIT_SECONDS}
    # Only the soft limit is set, so that a training can raise it again.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, resource.RLIM_INFINITY))
    sys.argv = ["matrix", *words]
    main()
