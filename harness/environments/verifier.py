"""The environment in which this host verifies runs: its own cpu stack, whatever environment the runs used."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.contract import CONTRACT
from harness.base.errors import UserError
from harness.environments.environment import Environment, ensure_environment
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack

if TYPE_CHECKING:
    from harness.host.engine import Engine
    from harness.host.engine_errors import Notify

USUAL_STACK = "cpu"


@dataclass(frozen=True)
class Verifier:
    """The environment in which this host verifies runs; without one, `missing` says why."""

    environment: Environment | None = None
    missing: str = ""

    def why_not(self, judged: Environment) -> str | None:
        """Return why a run in the environment `judged` cannot be verified in this one; None if it can."""
        if self.environment is None:
            return self.missing
        if judged.contract != CONTRACT:
            return "its app follows another contract than this host's"
        if judged.identity.get("app") != self.environment.identity.get("app"):
            return "its app is another version than this host's"
        return None


NO_VERIFIER = Verifier(missing="nothing was made to verify it in")


def verifying_stack(matrix: Matrix) -> Stack | None:
    """Return the stack in which this host verifies runs: `cpu`, else the first one for CPUs; None if there is none."""
    own = (s for s in matrix.stacks.values() if s.accelerator == "cpu" and s.framework == "torch" and not s.excluded)
    return min(own, key=lambda stack: stack.name != USUAL_STACK, default=None)


def make_verifier(stack: Stack | None, engine: "Engine | None", notify: "Notify" = lambda _: None) -> Verifier:
    """Make the environment in which this host verifies runs; with an engine, as an image that was built here."""
    executor = "docker" if engine else "process"
    if stack is None or executor not in stack.executors:
        return Verifier(missing="the matrix has no stack for CPUs that could be made here")
    try:
        # Import here, because it takes half a second, and commands that only describe runs do not need it.
        from harness.environments.docker.build import ensure_stack_image  # noqa: PLC0415

        if engine is None:
            return Verifier(ensure_environment(stack, notify))
        return Verifier(ensure_stack_image(engine, stack, notify, own=True).environment(stack))
    except UserError as error:
        return Verifier(missing=f"stack {stack.name} cannot be made here: {error}")
