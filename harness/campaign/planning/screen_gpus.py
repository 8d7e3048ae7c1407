"""The leave to use a GPU with a screen: asked for once, and remembered for a machine in its results folder."""

from collections.abc import Callable, Iterable
from pathlib import Path

from harness.base.files.json_bounds import load_json
from harness.base.files.storage import read_regular, write_json
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.fingerprint import training_gpus


def gpus_in_question(host: HostFacts) -> list[GpuFacts]:
    """Return the GPUs with a screen, where another has none: on a host without such another they are used anyway."""
    gpus = training_gpus(host)
    screened = [gpu for gpu in gpus if gpu.displays]
    return screened if len(screened) < len(gpus) else []


def may_use(
    host: HostFacts, results: Results, given: bool | None, ask: Callable[[str], bool] | None, *, notes: bool = True
) -> bool:
    """Return whether runs may use them: as was said now, or before, or is asked; without somebody to ask they may not.

    What is said, now or to the question, is remembered if it `notes` that.
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
    """Return what was said before; None where nobody was asked."""
    try:
        return bool(load_json(read_regular(_file(host, results)))["use"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _file(host: HostFacts, results: Results) -> Path:
    return results.folder / "campaigns" / f"{host.machine}.screens"


def question(gpus: Iterable[GpuFacts]) -> str:
    """Return the question."""
    screens = (f"a screen is connected to GPU {gpu.index} ({', '.join(gpu.displays)})" for gpu in gpus)
    return (
        f"On this host {' and '.join(screens)}, and a run that hangs may take it along. May runs use that GPU? "
        "Without it, what trains on all GPUs stays open."
    )
