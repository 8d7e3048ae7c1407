"""Rows about collectives, DDP and FSDP on one device: all of the code that does not need a second device."""

import json
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.gpu_evidence.arrays import Arrays
from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from benchmarks.gpu_evidence.training import fit, options_of, steps_of, weights_of
from vpoc.errors import UserError
from vpoc.probes.checks.several import run_ranks
from vpoc.probes.site import Site, Skipped
from vpoc.ranks.launch import Ranks
from vpoc.training.fit import Fit
from vpoc.training.model_file.artefact import weights_sha256
from vpoc.training.strategies.distributed import join, leave
from vpoc.training.train_options import DISTRIBUTED

NUMBERS = (1 << 10, 1 << 20, 1 << 24)
CLOSE = 1e-5
"""Allowed relative difference of losses whose sums are made in another order."""


def one_rank(site: Site, _kit: Kit) -> Finding:
    """Use the collective library with one rank: join, sum, barrier on its device, leave."""
    device = site.devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    site.at("joining")
    join(_alone(site), None, device, 60)
    backend = dist.get_backend()
    for count in NUMBERS:
        site.at(f"sum of {count} numbers")
        values = torch.arange(count, device=device)
        dist.all_reduce(values)
        if not torch.equal(values.cpu(), torch.arange(count)):
            finding_or_differs(
                False, f"{backend}: a sum over one rank of {count} numbers changed them", {"backend": backend}
            )
    site.at("leaving")
    leave(device)
    return Finding(f"{backend} with one rank: sums, barrier and end", {"backend": backend})


def wrapped(site: Site, kit: Kit, strategy: str) -> Finding:
    """Train with a strategy of one rank, and compare with a training without strategy."""
    arrays, steps = Arrays(kit.arrays), min(kit.steps, 20)
    site.at("single")
    right = _numbers(fit(arrays, "mlp", site.folder, steps, options_of("mlp", site.device)))
    site.at(strategy)
    chosen = options_of("mlp", site.device, strategy=strategy)
    try:
        training = fit(arrays, "mlp", site.folder, steps, chosen, ranks=_alone(site))
    except UserError as error:
        if "is the first" in str(error):
            raise Skipped(str(error)) from error
        raise
    found = _numbers(training)
    if strategy in DISTRIBUTED:
        leave(site.devices[0])
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, right, strict=True))
    how = "bitwise those" if found == right else f"within {worst:.1g} of those"
    numbers = {"worst": worst, "steps": steps}
    return finding_or_differs(
        worst <= CLOSE, f"{steps} steps: losses and gradient norms are {how} of one device", numbers
    )


def _numbers(training: Fit) -> list[float]:
    """Make all steps and return loss and gradient norm of each."""
    return [number for step in steps_of(training) for number in (step.loss, step.gradient_norm)]


def two_processes(site: Site, kit: Kit) -> Finding:
    """Train in two processes that share the device, over gloo, and compare with one process."""
    arrays, steps = Arrays(kit.arrays), min(kit.steps, 20)
    right = _numbers(fit(arrays, "mlp", site.folder, steps, options_of("mlp", site.device)))
    try:
        said = run_ranks(site, f"{__name__}:rank_of_two", 2, str(kit.arrays), str(steps))
    except RuntimeError as error:
        if "busy or unavailable" in str(error):
            raise Skipped(f"this GPU is set to one process at a time: {error}") from error
        raise
    found, weights = zip(*(json.loads(line) for line in said), strict=True)
    worst = max(abs(a - b) / abs(b) for a, b in zip(found[0], right, strict=True))
    numbers = {"worst": worst, "steps": steps, "equal_weights": weights[0] == weights[1]}
    equal = "equal" if weights[0] == weights[1] else "different"
    text = f"{steps} steps: losses and gradient norms within {worst:.1g} of one process, {equal} weights on both"
    return finding_or_differs(worst <= CLOSE and weights[0] == weights[1], text, numbers)


def rank_of_two(site: Site, number: str, count: str, store: str, arrays: str, steps: str) -> str:
    """Train as one of two processes; return losses and gradient norms, and the SHA-256 of the weights, as JSON."""
    # Both ranks use the first device, because each believes to be the only rank on its host.
    ranks = Ranks(int(number), int(count), local_rank=0, local_world=1, rendezvous=store)
    chosen = options_of("mlp", site.device, strategy="ddp", backend="gloo")
    training = fit(Arrays(Path(arrays)), "mlp", site.folder, int(steps), chosen, ranks=ranks)
    found = _numbers(training)
    digest = weights_sha256(weights_of(training))
    leave(site.devices[0])
    return json.dumps([found, digest])


def _alone(site: Site) -> Ranks:
    return Ranks(0, 1, local_rank=0, local_world=1, rendezvous=str(site.folder / "rendezvous"))
