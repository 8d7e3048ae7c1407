"""The permission to use a GPU with a screen: asked for once, and remembered for a machine in its results folder."""

from collections.abc import Callable, Iterable
from pathlib import Path

from harness.base.files.json_bounds import load_json
from harness.base.files.storage import read_regular, write_json
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.fingerprint import training_gpus


def gpus_in_question(host: HostFacts) -> list[GpuFacts]:
    """Return the GPUs with a screen if other GPUs have none; without such others, screened GPUs are used anyway."""
    gpus = training_gpus(host)
    screened = [gpu for gpu in gpus if gpu.displays]
    return screened if len(screened) < len(gpus) else []


def may_use(
    host: HostFacts, results: Results, given: bool | None, ask: Callable[[str], bool] | None, *, notes: bool = True
) -> bool:
    """Return whether runs may use the GPUs with a screen: as given now, as remembered, or as the user answers.

    - `given`: what the user says with an option; None if the user says nothing.
    - `ask`: asks the user a question; without it, and without an earlier answer, runs may not use these GPUs.
    - `notes`: remember what the user says.
    """
    gpus = gpus_in_question(host)
    if not gpus:
        return True
    before = remembered(host, results)
    if given is None and before is not None:
        return before
    said = given if given is not None else ask(question(gpus)) if ask else None
    if said is None:
        return False
    if notes:
        write_json(_file(host, results), {"schema": 2, "use": said})
    return said


def remembered(host: HostFacts, results: Results) -> bool | None:
    """Return the remembered answer; None if the user was never asked."""
    try:
        return bool(load_json(read_regular(_file(host, results)))["use"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _file(host: HostFacts, results: Results) -> Path:
    return results.folder / "campaigns" / f"{host.machine}.screens"


def question(gpus: Iterable[GpuFacts]) -> str:
    """Return the question that asks the user whether runs may use these GPUs."""
    screens = (f"a screen is connected to GPU {gpu.index} ({', '.join(gpu.displays)})" for gpu in gpus)
    return (
        f"On this host {' and '.join(screens)}, and a run that hangs may freeze the screen. May runs use that GPU? "
        "If not, it stays unknown what trains on all GPUs."
    )
