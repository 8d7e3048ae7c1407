"""Rows about trainings: first steps and loss against the CPU's reference, and what must be bitwise identical."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_evidence.arrays import Arrays, feature_count
from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from benchmarks.gpu_evidence.tolerances import COMPARED_STEPS, LATE, tolerance_of
from benchmarks.gpu_evidence.training import fit, losses_of, mixed, options_of, steps_of, weights_of
from vpoc.errors import Interrupted, UserError
from vpoc.models.attention import WINDOW
from vpoc.models.by_name import ATTENTION, choose_sdpa, fresh_network
from vpoc.probes.numbers import require_close
from vpoc.probes.site import Site, Skipped
from vpoc.progress import Progress
from vpoc.training import checkpoint
from vpoc.training.model_file.artefact import weights_sha256

SDPA_BATCH = 16
EXACT = 1e-4
"""Allowed distance of attention in float32 from float64, relative to the norm of the answers."""
HALF = 2e-2
"""Allowed distance of attention in float16 from float64."""
HALF_STEPS_ON_CPU = 40
"""Steps of the attention models in float16, which torch 2.5 computes a hundred times slower on a CPU."""
COMPARED_TWICE = {"cuda": 50, "cpu": 10}
"""Steps of each of the four trainings, which are compared in pairs."""
SDPA_OPERATIONS = {
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
}


def trained(site: Site, kit: Kit, kind: str, dtype: str, loop: str) -> Finding:
    """Train and compare: first steps one by one in loss and gradient norm, then the later course of the loss."""
    arrays = Arrays(kit.arrays)
    whole = arrays.reference(kind)
    steps = min(kit.steps, len(whole))
    if site.device == "cpu" and dtype == "float16" and kind in ATTENTION:
        steps = min(steps, HALF_STEPS_ON_CPU)
    reference = whole[:steps]
    # As many samples as the reference has, even for fewer steps, because the order depends on their number.
    training = fit(arrays, kind, site.folder, len(whole), options_of(kind, site.device, loop=loop, **mixed(dtype)))
    site.at(f"{steps} steps")
    losses: list[float] = []
    norms: dict[int, float] = {}
    for step in steps_of(training):
        losses += step.losses
        norms[step.number] = step.gradient_norm
        if len(losses) >= steps:
            break
    del losses[steps:]
    worst, beyond = {"loss": 0.0, "gradient norm": 0.0}, ""
    for number in range(1, min(COMPARED_STEPS, steps) + 1):
        got = {"loss": losses[number - 1]} | ({"gradient norm": norms[number]} if number in norms else {})
        for place, (name, value) in enumerate(got.items()):
            difference = abs(value - reference[number - 1, place]) / abs(reference[number - 1, place])
            # Written so that NaN stays.
            worst[name] = difference if not difference <= worst[name] else worst[name]
            if not difference <= tolerance_of(kind, dtype, number) and not beyond:
                beyond = f"; step {number}: {name} {value:.6g}, the CPU has {reference[number - 1, place]:.6g}"
    quarter = max(steps // 4, 1)
    late = abs(np.mean(losses[-quarter:]) / np.mean(reference[-quarter:, 0]) - 1)
    if not late <= LATE and not beyond:
        beyond = f"; mean loss of the last {quarter} steps {np.mean(losses[-quarter:]):.4g}, the CPU has " + (
            f"{np.mean(reference[-quarter:, 0]):.4g}"
        )
    numbers = {
        "steps": steps,
        "worst_loss": worst["loss"],
        "worst_gradient_norm": worst["gradient norm"],
        "late_loss": float(late),
        "skipped": training.trainer.steps_skipped,
    }
    text = (
        f"{steps} steps; first {min(COMPARED_STEPS, steps)}: loss within {worst['loss']:.1g}, gradient norm within "
        f"{worst['gradient norm']:.1g} of the CPU's float32; last quarter within {late:.1g}{beyond}"
    )
    return finding_or_differs(not beyond and len(losses) == steps, text, numbers)


def sdpa(site: Site, _kit: Kit, backend: str, dtype: str) -> Finding:
    """Ask for a backend of attention, see which kernel torch really calls, and compare its answers with float64."""
    device, kind = site.devices[0], getattr(torch, dtype)
    rows = torch.randn(SDPA_BATCH, WINDOW, feature_count(), generator=torch.Generator().manual_seed(0))
    # Computed before the choice, which applies to the CPU too, and the CPU has no efficient attention.
    wanted = _answers_in_double(rows)
    try:
        choose_sdpa(backend, device, kind, tuple(ATTENTION))
    except UserError as refusal:
        raise Skipped(f"refused before it is used: {refusal}") from refusal
    network = fresh_network("attention", feature_count(), (), 7).to(device)
    site.at(f"{backend} on {device}")
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        torch.no_grad(),
        torch.autocast(device.type, dtype=kind, enabled=kind != torch.float32),
    ):
        found = network(rows.to(device))
    called = {SDPA_OPERATIONS[event.key] for event in profile.key_averages() if event.key in SDPA_OPERATIONS}
    error = require_close(found, wanted, EXACT if kind == torch.float32 else HALF, f"answers with {backend}")
    names = " and ".join(sorted(called)) or "no kernel that is known"
    right = called == {backend} or (backend == "auto" and len(called) == 1)
    return finding_or_differs(
        right, f"asked for {backend}, called {names}; within {error:.1g} of float64", {"called": names, "error": error}
    )


def _answers_in_double(rows: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = fresh_network("attention", feature_count(), (), 7).double()(rows.double())
    return found


def deterministic(site: Site, kit: Kit, kind: str, dtype: str) -> Finding:
    """Train twice with the deterministic switch and twice without, and say at which step two trainings differ."""
    arrays, steps = Arrays(kit.arrays), min(kit.steps, COMPARED_TWICE[site.device])
    parted: dict[bool, int | None] = {}
    # The switch comes first, because libraries read its settings when they create their first handle.
    for switch in (True, False):
        chosen = options_of(kind, site.device, deterministic=switch, **mixed(dtype))
        site.at(f"deterministic {switch}")
        pair = [fit(arrays, kind, site.folder, steps, chosen) for _ in range(2)]
        losses = [losses_of(training) for training in pair]
        first = next((n for n, (a, b) in enumerate(zip(*losses, strict=True), start=1) if a != b), None)
        same = weights_sha256(weights_of(pair[0])) == weights_sha256(weights_of(pair[1]))
        parted[switch] = None if same else first or steps
    torch.use_deterministic_algorithms(False)
    without = f"from step {parted[False]} on they differ" if parted[False] else "they are too"
    numbers = {"steps": steps, "parted_without": parted[False], "parted_with": parted[True]}
    text = f"{steps} steps with --deterministic: two trainings are "
    if parted[True]:
        return finding_or_differs(
            False, f"{text}not bitwise identical, from step {parted[True]} on; without it {without}", numbers
        )
    return Finding(f"{text}bitwise identical; without it {without}", numbers)


class _StopsAt(Progress):
    """A Progress that asks the training to end after a step, as a signal does."""

    def __init__(self, number: int) -> None:
        super().__init__(None)
        self.number = number

    def step(self, done: int, seconds: float, loss: float | None = None, gradient_norm: float | None = None) -> None:
        """Count a step as Progress.step does, and ask for the end at the chosen step."""
        super().step(done, seconds, loss, gradient_norm)
        if done >= self.number and self.holds_interrupts:
            self.interrupt(15)


def resumed(site: Site, kit: Kit, loop: str, dtype: str) -> Finding:
    """Stop a training within an epoch, resume it, and compare its weights with those of an uninterrupted one."""
    arrays, steps = Arrays(kit.arrays), min(kit.steps, 30)
    chosen = options_of("mlp", site.device, loop=loop, epochs=2, **mixed(dtype))
    site.at("uninterrupted")
    whole = fit(arrays, "mlp", site.folder / "whole", steps, chosen).to_the_end()
    site.at("interrupted")
    stopped = fit(arrays, "mlp", site.folder / "cut", steps, chosen, progress=_StopsAt(steps // 2))
    with contextlib.suppress(Interrupted):
        stopped.to_the_end()
    at = stopped.trainer.steps_done
    site.at(f"resumed after step {at}")
    again = fit(arrays, "mlp", site.folder / "cut", steps, replace(chosen, resume=True))
    again.resume()
    resumed_at = again.trainer.steps_done
    cut = again.to_the_end()
    same = whole.rank_weights_sha256 == cut.rank_weights_sha256 and resumed_at == at and at < 2 * steps
    if not same:
        control = fit(arrays, "mlp", site.folder / "control", steps, chosen).to_the_end()
        if control.rank_weights_sha256 != whole.rank_weights_sha256:
            raise Skipped("two trainings that were not stopped differ here, too: see the rows deterministic-*")
    how = "bitwise identical to" if same else "not those of"
    return finding_or_differs(
        same,
        f"stopped after step {at} of {2 * steps}, resumed after {resumed_at}: weights {how} an uninterrupted training",
        {"at": at},
    )


def checkpoints(site: Site, kit: Kit, kind: str) -> Finding:
    """Measure a checkpoint in seconds and in steps; what is read back must be bitwise identical."""
    arrays = Arrays(kit.arrays)
    training = fit(arrays, kind, site.folder / "checkpoints", 8, options_of(kind, site.device))
    seconds = [step.seconds for step in steps_of(training)]
    site.at("checkpoint")
    began = time.perf_counter()
    training.save()
    took = time.perf_counter() - began
    found = checkpoint.last_checkpoint(training.folder, _ignore)
    state = checkpoint.state_of(training.trainer)
    # Besides the trainer's state, a checkpoint has the weights of the best epoch.
    same = found is not None and _equal({name: found.state[name] for name in state}, state)
    size = max((path.stat().st_size for path in Path(training.folder).glob("step-*.pt")), default=0)
    step = float(np.median(seconds[2:]))
    numbers = {"seconds": took, "step_seconds": step, "bytes": size}
    back = "read back bitwise identical" if same else "not read back as it was written"
    return finding_or_differs(
        same, f"{size / 1e6:.3g} MB in {took:.3g} s, as long as {took / step:.3g} steps; {back}", numbers
    )


def _ignore(_line: str) -> None:
    pass


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
        )
    return bool(one == other)


def workers(site: Site, kit: Kit) -> Finding:
    """Compare the losses with loader workers, forked beside a device in use, with those without workers."""
    arrays, steps = Arrays(kit.arrays), min(kit.steps, 30)
    losses = {}
    for count in (0, 2):
        site.at(f"{count} workers")
        chosen = options_of("mlp", site.device, loader_workers=count)
        losses[count] = losses_of(fit(arrays, "mlp", site.folder, steps, chosen))
    same = losses[0] == losses[2]
    if not same and losses[0] != losses_of(fit(arrays, "mlp", site.folder, steps, options_of("mlp", site.device))):
        raise Skipped("two trainings without workers differ here, too: see the rows deterministic-*")
    return finding_or_differs(
        same, f"{steps} steps: losses with 2 workers are {'' if same else 'not '}those with none", {"steps": steps}
    )
