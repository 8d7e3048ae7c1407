"""The next fallback after an attempt at a training that did not end with a model. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from packaging.version import Version

from harness.base.wording import many
from harness.evidence.files.run_files import OutcomeName
from harness.matrix.cells import Preset
from harness.matrix.strategies import RANK_PER_DEVICE, Strategy
from harness.matrix.variants import VARIANT

Fallback = Literal[
    "same-again", "fresh-allocator", "smaller-micro-batch", "no-hipblaslt", "no-p2p", "one-device", "other-stack", "cpu"
]
Begin = Literal["first", "resumed", "planned-restart", "by-hand"] | Fallback
"""Why an attempt is made. `resumed`: the one before was interrupted. It and a planned restart change nothing.

`by-hand`: the fallbacks were exhausted, and the user wants it tried once more, from the first fallback on.
"""

AT_MOST: Mapping[Fallback, int] = {
    "same-again": 2,
    "fresh-allocator": 1,
    "smaller-micro-batch": 3,
    "no-hipblaslt": 1,
    "no-p2p": 1,
    "one-device": 1,
    "other-stack": 1,
    "cpu": 1,
}
"""The fallbacks in order, and how often each is taken: `same-again` without getting further in between.

In another stack all begin from the top, so that it is taken once for each there is.
"""

OF_THE_APP: tuple[Fallback, ...] = ("smaller-micro-batch", "one-device", "other-stack", "cpu")
"""Those that are options of the app, or need that it runs anywhere."""

_MEMORY: tuple[Fallback, ...] = ("fresh-allocator", "smaller-micro-batch")
_BLAS: tuple[Fallback, ...] = ("no-hipblaslt",)
_COLLECTIVE: tuple[Fallback, ...] = ("no-p2p", "one-device")
# No setting helps a GPU that this build of torch cannot use; another build may.
_NO_GPU: tuple[Fallback, ...] = ("other-stack", "cpu")
PREFERRED: Mapping[str, tuple[Fallback, ...]] = {
    **dict.fromkeys(("oom-gpu", "oom-host"), _MEMORY),
    **dict.fromkeys(("blas-init", "blas-kernel", "blas-not-supported", "hipblaslt-kernel"), _BLAS),
    **dict.fromkeys(("hang-collective", "hang-rendezvous", "rccl", "rendezvous", "lost-peer"), _COLLECTIVE),
    **dict.fromkeys(("missing-arch", "no-device", "pcie-atomics"), _NO_GPU),
}
"""By class of diagnosis: the fallbacks that are tried before the others."""

# Copies between GPUs; `averaging` makes them through shared memory.
_PEERS = frozenset[Strategy]({"dp", "ddp", "fsdp", "model-parallel"})
BY_HAND: tuple[Begin, ...] = ("by-hand",)
AFRESH: tuple[Begin, ...] = (*BY_HAND, "other-stack")
"""Attempts from which on every fallback may be taken as if none had been."""
ALLOW_CPU = "--allow-cpu trains on the CPU instead, from the last checkpoint"
NO_HIPBLASLT = {"TORCH_BLAS_PREFER_HIPBLASLT": "0", "DISABLE_ADDMM_CUDA_LT": "1"}
NO_P2P = {"NCCL_P2P_DISABLE": "1", "HSA_ENABLE_PEER_SDMA": "0"}


@dataclass(frozen=True)
class Attempt:
    """An attempt that has ended. `begin` is why it was made.

    `step`: the optimizer steps in its last checkpoints that can be resumed from, over all its models. `mistake`: the
    app says that its input is wrong. `wrong`: what it computed is not what was asked for, or cannot be judged.
    `checkpoints`: those that there were to resume from after it, of it and of those before it.
    """

    begin: Begin
    outcome: OutcomeName
    class_: str | None = None
    step: int = 0
    mistake: bool = False
    trained: bool = False
    wrong: bool = False
    checkpoints: tuple[PurePath, ...] = ()


@dataclass(frozen=True)
class AttemptSettings:
    """The settings of an attempt that fallbacks change; `devices` is the number it uses.

    `stack` is the number of the stack among those that can be used, 0 being the one asked for.
    """

    device: Literal["cpu", "cuda"]
    strategy: Strategy
    devices: int
    batch_size: int
    micro_batch_size: int | Literal["auto"] | None = None
    fresh_allocator: bool = False
    no_hipblaslt: bool = False
    no_p2p: bool = False
    stack: int = 0

    @property
    def share(self) -> int:
        """The samples of a batch that a rank computes."""
        ranks = self.devices if self.strategy in RANK_PER_DEVICE else 1
        return max(1, self.batch_size // ranks)


@dataclass(frozen=True)
class Exhausted:
    """No fallback is left, and why. `mistake`: the user can fix it."""

    why: str
    mistake: bool = False


def next_fallback(
    attempts: Sequence[Attempt],
    settings: AttemptSettings,
    gpus_left: int,
    *,
    others: int = 0,
    allow_cpu: bool = False,
    own_program: bool = False,
) -> Begin | Exhausted | None:
    """Return how to continue after these attempts, the last of them made with `settings`; None with a trained model.

    `gpus_left`: the GPUs of this host that are not unhealthy. `others`: the other stacks that can be used here.
    `allow_cpu`: the CPU may take over from the GPUs. `own_program`: of the user's own, for which only variables can be
    changed.
    """
    attempts = attempts[_last_start((attempt.begin for attempt in attempts), AFRESH) :]
    last = attempts[-1]
    if last.trained:
        return None
    if last.mistake and _unchanged(attempts):
        return Exhausted("its input is wrong", mistake=True)
    lacks_gpus = settings.device == "cuda" and gpus_left < settings.devices
    if last.outcome == "interrupted" and not lacks_gpus:
        return "resumed"
    order: Sequence[Fallback] = (*PREFERRED.get(last.class_ or "", ()), *AT_MOST)
    if lacks_gpus:
        order = ("one-device", "cpu") if gpus_left else ("cpu",)
    stalled = _since_progress(attempts)
    allowed = {"other-stack": settings.stack < others and not lacks_gpus, "cpu": allow_cpu}
    allowed |= dict.fromkeys(OF_THE_APP, False) if own_program else {}
    for fallback in order:
        if fallback == "other-stack" and allowed[fallback] and with_fallback(settings, fallback):
            return fallback
        taken = sum(attempt.begin == fallback for attempt in (stalled if fallback == "same-again" else attempts))
        if taken < AT_MOST[fallback] and with_fallback(settings, fallback) and allowed.get(fallback, True):
            return fallback
    furthest = max(attempt.step for attempt in attempts)
    so_far = (
        f"the last {len(stalled) + 1} of them without getting further than step {furthest}"
        if furthest
        else "none of which got to a step"
    )
    why = f"{many(len(attempts), 'attempt was', 'attempts were')} made, {so_far}, and "
    why += "no healthy GPU is left" if lacks_gpus else "nothing is left to be changed"
    return Exhausted(why if allow_cpu or own_program or settings.device == "cpu" else f"{why} on a GPU; {ALLOW_CPU}")


def with_fallback(settings: AttemptSettings, begin: Begin) -> AttemptSettings | None:
    """Return the settings with one more fallback; None where it would change nothing."""
    gpu = settings.device == "cuda"
    match begin:
        case "fresh-allocator":
            return None if settings.fresh_allocator else replace(settings, fresh_allocator=True)
        case "smaller-micro-batch":
            now = settings.micro_batch_size
            size = (now if isinstance(now, int) else settings.share) // 2
            return replace(settings, micro_batch_size=size) if size else None
        case "no-hipblaslt":
            return None if settings.no_hipblaslt or not gpu else replace(settings, no_hipblaslt=True)
        case "no-p2p":
            peers = gpu and settings.devices > 1 and settings.strategy in _PEERS
            return replace(settings, no_p2p=True) if peers and not settings.no_p2p else None
        case "one-device":
            return _alone(settings, settings.device) if settings.strategy != "single" else None
        case "other-stack":
            return replace(settings, stack=settings.stack + 1) if gpu else None
        case "cpu":
            return _alone(settings, "cpu") if gpu else None
        case _:
            return settings


def settings_after(settings: AttemptSettings, begins: Sequence[Begin]) -> AttemptSettings:
    """Return the settings of the last of these attempts, the first having been made with `settings`."""
    asked = settings
    for begin in begins[_last_start(begins) :]:
        if begin == "other-stack":
            settings = replace(asked, stack=settings.stack + 1)
        else:
            settings = with_fallback(settings, begin) or settings
    return settings


def preset_of(preset: Preset, settings: AttemptSettings, torch: str | None) -> Preset:
    """Return the preset with the variables of these settings, under another name; the same where there are none."""
    chosen: dict[str, dict[str, str]] = {}
    if settings.fresh_allocator:
        chosen["fresh-allocator"] = allocator_variables(settings.device, torch)
    if settings.device == "cuda" and settings.no_hipblaslt:
        chosen["no-hipblaslt"] = NO_HIPBLASLT
    if settings.device == "cuda" and settings.no_p2p:
        chosen["no-p2p"] = NO_P2P
    if not chosen:
        return preset
    variables = {name: value for of_fallback in chosen.values() for name, value in of_fallback.items()}
    # What the preset sets for one phase alone would win over what it sets for both.
    phases = {
        phase: {**of_phase, **{name: variables[name] for name in of_phase.keys() & variables.keys()}}
        for phase, of_phase in (("features", preset.features), ("train", preset.train))
    }
    name = f"{preset.name}{VARIANT}{'+'.join(chosen)}"
    changed = {"name": name, "variables": {**preset.variables, **variables}, **phases}
    return preset.model_copy(update=changed)


def allocator_variables(device: Literal["cpu", "cuda"], torch: str | None) -> dict[str, str]:
    """Return variables with which memory is less likely to be cut into pieces too small to use."""
    if device == "cpu":
        return {"MALLOC_ARENA_MAX": "2"}
    version = Version(torch or "0")
    # ROCm wheels have segments that can grow since torch 2.12, and the neutral name since 2.9.
    value = "expandable_segments:True" if version >= Version("2.12") else "max_split_size_mb:512"
    return {"PYTORCH_ALLOC_CONF" if version >= Version("2.9") else "PYTORCH_HIP_ALLOC_CONF": value}


def _alone(settings: AttemptSettings, device: Literal["cpu", "cuda"]) -> AttemptSettings:
    """The same in one process. Its micro-batch is what a rank had: that adds up the same gradients."""
    several = settings.strategy in RANK_PER_DEVICE and settings.devices > 1
    micro = settings.micro_batch_size or (settings.share if several else None)
    return replace(settings, device=device, strategy="single", devices=1, micro_batch_size=micro)


def _last_start(begins: Iterable[Begin], afresh: Collection[Begin] = BY_HAND) -> int:
    """The number of the attempt from which fallbacks were last tried from the first on."""
    return max((number for number, begin in enumerate(begins) if begin in afresh), default=0)


def _unchanged(attempts: Sequence[Attempt]) -> bool:
    """Return whether no fallback has changed anything yet."""
    return all(attempt.begin == "same-again" or attempt.begin not in AT_MOST for attempt in attempts)


def _since_progress(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts after the last one that got further than all before it."""
    furthest, last = 0, -1
    for number, attempt in enumerate(attempts):
        if attempt.step > furthest:
            furthest, last = attempt.step, number
    return attempts[last + 1 :]
