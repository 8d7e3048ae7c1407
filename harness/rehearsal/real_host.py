"""Describes, for each step of a rehearsal, what a real host does, and what only a real host can show. Pure."""

from collections.abc import Sequence

from harness.matrix.stacks import ExecutorName, Stack
from harness.rehearsal.steps import StepName


def on_a_real_host(stack: Stack, executor: ExecutorName) -> dict[StepName, str]:
    """Return what a real host does for a stack in each step, in words."""
    origin, budget = stack.origin, stack.budget
    url = stack.shown_index or stack.index
    contained = executor == "docker"
    refuses = f"; it answers {origin.refuses[0]} for what it does not hold" if origin.refuses else ""
    unhashed = origin.folder or origin.extra_of == "torch"
    hashing = "; where its pages give no hash, the wheel is downloaded now to compute it" if unhashed else ""
    built = f", building {' and '.join(origin.built)} from source with setuptools from PyPI" if origin.built else ""
    targets = f" and the device code of {', '.join(stack.targets)} alone" if stack.targets else ""
    room = f"installs {budget.disk:g} GB" + (" in layers of their own" if contained else " in a virtual environment")
    verified = "imports and uses the real torch in the build" if contained else "compares what the run says of torch"
    return {
        "lock": f"asks {url} for torch {stack.torch}+{stack.label}{targets}, and PyPI for the rest{refuses}{hashing}",
        "fetch": f"about {budget.download:g} GB (wheels.yaml) into .cache/wheels, each compared with its hash{built}",
        "build": f"{f'starts from {stack.base}, and ' if contained else f'fetches {budget.download:g} GB, and '}{room}",
        "verify": f"{verified}, whose torch.version.hip has to begin with {stack.hip}",
        "run": "the app with --device cuda, on GPUs that the host sees in use; the first kernel on a GPU is seen here",
        "record": "counts, for this stack on this kind of host",
    }


def first_shown(stacks: Sequence[Stack]) -> list[str]:
    """Return what no rehearsal can show, so that a real host is the first to show it."""
    urls = dict.fromkeys(stack.shown_index or stack.index for stack in stacks)
    return [
        f"that {', '.join(urls)} {'answers' if len(urls) == 1 else 'answer'} from there, and as the stand-in does",
        "that they have these versions, under these names and with these requirements: wheels.yaml says who said so",
        "their sizes, and how long they take",
        "that torch finds ROCm, the driver and a GPU, and computes right on it",
    ]
