"""The hooks of Slurm on this host."""

from collections.abc import Iterator

from harness.doctor.finding import Finding, ok, warning
from harness.doctor.machine import Machine

INSTALL = ".venv/bin/matrix slurm-prolog"
WITHOUT = {
    "Prolog": "a node with an unhealthy GPU takes job after job, which all fail",
    "Epilog": "processes and containers that a cancelled job leaves keep its memory and its GPU",
}


def slurm_hooks(machine: Machine) -> Iterator[Finding]:
    """Slurm's Prolog and Epilog on this host, and whether they are the hooks that `matrix slurm-prolog` prints."""
    for hook in machine.slurm_hooks:
        if hook.ours:
            yield ok(f"Slurm's {hook.name} is {hook.ours}")
        else:
            set_to = ", ".join(hook.programs) or "not set"
            yield warning(
                f"Slurm's {hook.name} is {set_to}, which runs no `matrix slurm-{hook.name.lower()}` on this host",
                WITHOUT[hook.name],
                INSTALL,
            )
