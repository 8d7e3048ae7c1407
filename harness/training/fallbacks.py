"""The choice of the next fallback after an attempt that did not complete the training. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from packaging.version import Version

from harness.base.durations import span
from harness.base.wording import many
from harness.evidence.files.run_files import OutcomeName
from harness.matrix.cells import Preset
from harness.matrix.strategies import RANK_PER_DEVICE, Strategy
from harness.matrix.variants import VARIANT

Fallback = Literal[
    "same-again", "fresh-allocator", "smaller-micro-batch", "no-hipblaslt", "no-p2p", "one-device", "other-stack", "cpu"
]
Begin = Literal["first", "resumed", "planned-restart", "by-hand"] | Fallback
"""Why an attempt is made.

`resumed`: the attempt before was interrupted. Like a planned restart it changes no setting.
`by-hand`: the fallbacks were exhausted, and the user started again; all fallbacks may be used once more.
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
"""The fallbacks in order, and how often each is used; for `same-again`, how often without progress in between.

In another stack the fallbacks start over, so `other-stack` is used once for each other stack.
"""

OF_THE_APP: tuple[Fallback, ...] = ("smaller-micro-batch", "one-device", "other-stack", "cpu")
"""The fallbacks that change options of our app or need that it runs anywhere: not for a program of the user's own."""

RESTARTS_AT_MOST, WITHIN_SECONDS = 20, 3600.0
"""After so many attempts that ran so short together a program of the user's own is not started again.

Nothing but the program itself says that it gets further: it could say so of every attempt.
"""

_MEMORY: tuple[Fallback, ...] = ("fresh-allocator", "smaller-micro-batch")
_BLAS: tuple[Fallback, ...] = ("no-hipblaslt",)
_COLLECTIVE: tuple[Fallback, ...] = ("no-p2p", "one-device")
# No setting helps if this build of torch cannot use the GPU, but another build may.
_NO_GPU: tuple[Fallback, ...] = ("other-stack", "cpu")
PREFERRED: Mapping[str, tuple[Fallback, ...]] = {
    **dict.fromkeys(("oom-gpu", "oom-host"), _MEMORY),
    **dict.fromkeys(("blas-init", "blas-kernel", "blas-not-supported", "hipblaslt-kernel"), _BLAS),
    **dict.fromkeys(("hang-collective", "hang-rendezvous", "rccl", "rendezvous", "lost-peer"), _COLLECTIVE),
    # After the same again, which for a training on one GPU is on the GPU that was reset least.
    **dict.fromkeys(("gpu-reset", "gpu-hang"), ("same-again", *_COLLECTIVE)),
    **dict.fromkeys(("missing-arch", "no-device", "pcie-atomics"), _NO_GPU),
}
"""The fallbacks that are tried first, by class of failure."""

# Strategies that copy between GPUs directly; `averaging` copies through shared memory.
_PEERS = frozenset[Strategy]({"dp", "ddp", "fsdp", "model-parallel"})
BY_HAND: tuple[Begin, ...] = ("by-hand",)
RESTARTS_FALLBACKS: tuple[Begin, ...] = (*BY_HAND, "other-stack")
"""Beginnings after which every fallback may be used again as if none had been used."""
ALLOW_CPU = "--allow-cpu trains on the CPU instead, from the last checkpoint"
# The fallbacks that set variables; the other ones change options.
SET_VARIABLES = frozenset({"fresh-allocator", "no-hipblaslt", "no-p2p"})
NO_HIPBLASLT = {"TORCH_BLAS_PREFER_HIPBLASLT": "0", "DISABLE_ADDMM_CUDA_LT": "1"}
NO_P2P = {"NCCL_P2P_DISABLE": "1", "HSA_ENABLE_PEER_SDMA": "0"}


@dataclass(frozen=True)
class Attempt:
    """An attempt that has ended.

    `begin`: why it was made.
    `step`: the optimizer steps, over all models, in the last checkpoints that can be resumed from.
    `mistake`: whether the app reported that its input is wrong.
    `wrong`: whether it computed something else than requested, or its result cannot be judged.
    `checkpoints`: all checkpoints to resume from after it, its own and earlier ones.
    `seconds`: of a program of the user's own, how long it ran.
    """

    begin: Begin
    outcome: OutcomeName
    class_: str | None = None
    step: int = 0
    mistake: bool = False
    trained: bool = False
    wrong: bool = False
    checkpoints: tuple[PurePath, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class AttemptSettings:
    """The settings of an attempt that fallbacks change.

    `devices`: the number of devices that the attempt uses.
    `stack`: the number of its stack among those that can be used; 0 is the requested one.
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
        """The number of samples of a batch that one rank computes."""
        ranks = self.devices if self.strategy in RANK_PER_DEVICE else 1
        return max(1, self.batch_size // ranks)


@dataclass(frozen=True)
class Exhausted:
    """No fallback is left, for the reason `why`. `mistake`: whether the user can fix it."""

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
    """Return how to continue after these attempts; None if the last one trained the model.

    `settings`: the settings of the last attempt.
    `gpus_left`: the number of GPUs of this host that are not unhealthy.
    `others`: the number of other stacks that can be used here.
    `allow_cpu`: whether the CPU may replace the GPUs.
    `own_program`: whether a program of the user's own trains; then fallbacks can only change variables.
    """
    attempts = attempts[_last_start((attempt.begin for attempt in attempts), RESTARTS_FALLBACKS) :]
    last = attempts[-1]
    if last.trained:
        return None
    if last.mistake and _unchanged(attempts):
        return Exhausted("its input is wrong", mistake=True)
    lacks_gpus = settings.device == "cuda" and gpus_left < settings.devices
    if last.outcome == "interrupted" and not lacks_gpus:
        return "resumed"
    newest = attempts[-RESTARTS_AT_MOST:]
    ran = sum(attempt.seconds for attempt in newest)
    if own_program and len(newest) == RESTARTS_AT_MOST and ran < WITHIN_SECONDS:
        return Exhausted(f"the last {len(newest)} attempts ran for {span(ran)} together, too short to go on like this")
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
        else "none of which left a step to continue from"
    )
    why = f"{many(len(attempts), 'attempt was', 'attempts were')} made, {so_far}, and "
    why += "no healthy GPU is left" if lacks_gpus else "nothing is left to be changed"
    return Exhausted(why if allow_cpu or own_program or settings.device == "cpu" else f"{why} on a GPU; {ALLOW_CPU}")


def with_fallback(settings: AttemptSettings, begin: Begin) -> AttemptSettings | None:
    """Return the settings with one more fallback; None if it would change nothing."""
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
            return _on_one_device(settings, settings.device) if settings.strategy != "single" else None
        case "other-stack":
            return replace(settings, stack=settings.stack + 1) if gpu else None
        case "cpu":
            return _on_one_device(settings, "cpu") if gpu else None
        case _:
            return settings


def settings_after(settings: AttemptSettings, begins: Sequence[Begin]) -> AttemptSettings:
    """Return the settings of the last of these attempts; `settings` are those of the first."""
    asked = settings
    for begin in begins[_last_start(begins) :]:
        if begin == "other-stack":
            settings = replace(asked, stack=settings.stack + 1)
        else:
            settings = with_fallback(settings, begin) or settings
    return settings


def preset_of(preset: Preset, settings: AttemptSettings, torch: str | None) -> Preset:
    """Return the preset with the variables of these settings under another name; the same preset if there are none."""
    on_gpu = settings.device == "cuda"
    chosen = ["fresh-allocator"] if settings.fresh_allocator else []
    chosen += ["no-hipblaslt"] if on_gpu and settings.no_hipblaslt else []
    chosen += ["no-p2p"] if on_gpu and settings.no_p2p else []
    if not chosen:
        return preset
    variables = fallback_variables(chosen, settings.device, torch)
    # Variables that the preset sets for one phase override those for both, so change them there, too.
    phases = {
        phase: {**of_phase, **{name: variables[name] for name in of_phase.keys() & variables.keys()}}
        for phase, of_phase in (("features", preset.features), ("train", preset.train))
    }
    name = f"{preset.name}{VARIANT}{'+'.join(chosen)}"
    changed = {"name": name, "variables": {**preset.variables, **variables}, **phases}
    return preset.model_copy(update=changed)


def fallback_variables(names: Iterable[str], device: Literal["cpu", "cuda"], torch: str | None) -> dict[str, str]:
    """Return the variables that these fallbacks set, which are some of SET_VARIABLES."""
    known = {"fresh-allocator": allocator_variables(device, torch), "no-hipblaslt": NO_HIPBLASLT, "no-p2p": NO_P2P}
    return {variable: value for name in names for variable, value in known[name].items()}


def allocator_variables(device: Literal["cpu", "cuda"], torch: str | None) -> dict[str, str]:
    """Return variables that make it less likely that free memory is split into pieces too small to use."""
    if device == "cpu":
        return {"MALLOC_ARENA_MAX": "2"}
    version = Version(torch or "0")
    # Since torch 2.12, ROCm wheels support expandable segments; since 2.9 the variable has a vendor-neutral name.
    value = "expandable_segments:True" if version >= Version("2.12") else "max_split_size_mb:512"
    return {"PYTORCH_ALLOC_CONF" if version >= Version("2.9") else "PYTORCH_HIP_ALLOC_CONF": value}


def _on_one_device(settings: AttemptSettings, device: Literal["cpu", "cuda"]) -> AttemptSettings:
    """Return the settings for one process. A micro-batch of a rank's former share adds up the same gradients."""
    several = settings.strategy in RANK_PER_DEVICE and settings.devices > 1
    micro = settings.micro_batch_size or (settings.share if several else None)
    return replace(settings, device=device, strategy="single", devices=1, micro_batch_size=micro)


def _last_start(begins: Iterable[Begin], afresh: Collection[Begin] = BY_HAND) -> int:
    """Return the number of the last attempt with which the fallbacks started over; 0 if there is none."""
    return max((number for number, begin in enumerate(begins) if begin in afresh), default=0)


def _unchanged(attempts: Sequence[Attempt]) -> bool:
    """Return whether no fallback has changed a setting yet."""
    return all(attempt.begin == "same-again" or attempt.begin not in AT_MOST for attempt in attempts)


def _since_progress(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts after the last one that got further than all before it."""
    furthest, last = 0, -1
    for number, attempt in enumerate(attempts):
        if attempt.step > furthest:
            furthest, last = attempt.step, number
    return attempts[last + 1 :]
