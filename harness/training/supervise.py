"""What to do after an attempt at a training that did not end with a model: the next rung of a ladder. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from packaging.version import Version

from harness.evidence.run_files import OutcomeName
from harness.matrix.cells import RANK_PER_DEVICE, Preset, Strategy
from harness.matrix.variants import VARIANT

Rung = Literal["same-again", "fresh-allocator", "smaller-micro-batch", "no-hipblaslt", "no-p2p", "one-device", "cpu"]
Begin = Literal["first", "going-on", "planned-restart", "by-hand"] | Rung
"""Why an attempt is made. `going-on`: the one before was interrupted. It and a planned restart change nothing.

`by-hand`: it had been given up, and the user wants it tried once more, from the top of the ladder.
"""

AT_MOST: Mapping[Rung, int] = {
    "same-again": 2,
    "fresh-allocator": 1,
    "smaller-micro-batch": 3,
    "no-hipblaslt": 1,
    "no-p2p": 1,
    "one-device": 1,
    "cpu": 1,
}
"""The ladder from top to bottom, and how often each rung is taken: `same-again` without getting further in between."""

_MEMORY: tuple[Rung, ...] = ("fresh-allocator", "smaller-micro-batch")
_BLAS: tuple[Rung, ...] = ("no-hipblaslt",)
_COLLECTIVE: tuple[Rung, ...] = ("no-p2p", "one-device")
# Nothing that is set helps a GPU that this build of torch cannot use.
_NO_GPU: tuple[Rung, ...] = ("cpu",)
FIRST: Mapping[str, tuple[Rung, ...]] = {
    **dict.fromkeys(("oom-gpu", "oom-host"), _MEMORY),
    **dict.fromkeys(("blas-init", "blas-kernel", "blas-not-supported", "hipblaslt-kernel"), _BLAS),
    **dict.fromkeys(("hang-collective", "hang-rendezvous", "rccl", "rendezvous", "lost-peer"), _COLLECTIVE),
    **dict.fromkeys(("missing-arch", "no-device", "pcie-atomics"), _NO_GPU),
}
"""By class of diagnosis: the rungs that are tried before the others."""

# Copies between GPUs; `averaging` makes them through shared memory.
_PEERS = frozenset[Strategy]({"dp", "ddp", "fsdp", "model-parallel"})
NO_HIPBLASLT = {"TORCH_BLAS_PREFER_HIPBLASLT": "0", "DISABLE_ADDMM_CUDA_LT": "1"}
NO_P2P = {"NCCL_P2P_DISABLE": "1", "HSA_ENABLE_PEER_SDMA": "0"}


@dataclass(frozen=True)
class Attempt:
    """What became of an attempt. `begin` is why it was made.

    `step`: the optimizer steps in its last checkpoints that can be gone on from, over all its models. `mistake`: the
    app says that its input is wrong. `wrong`: what it computed is not what was asked for.
    """

    begin: Begin
    outcome: OutcomeName
    class_: str | None = None
    step: int = 0
    mistake: bool = False
    trained: bool = False
    wrong: bool = False


@dataclass(frozen=True)
class Settings:
    """What the rungs change of an attempt; `devices` are those it uses."""

    device: Literal["cpu", "cuda"]
    strategy: Strategy
    devices: int
    batch_size: int
    micro_batch_size: int | Literal["auto"] | None = None
    fresh_allocator: bool = False
    no_hipblaslt: bool = False
    no_p2p: bool = False

    @property
    def share(self) -> int:
        """The samples of a batch that a rank computes."""
        ranks = self.devices if self.strategy in RANK_PER_DEVICE else 1
        return max(1, self.batch_size // ranks)


@dataclass(frozen=True)
class GiveUp:
    """No attempt is left, and why. `mistake`: the user can mend it."""

    why: str
    mistake: bool = False


def after(attempts: Sequence[Attempt], settings: Settings, gpus_left: int) -> Begin | GiveUp | None:
    """How to go on after these attempts, the last of them made with `settings`; None when the model is trained.

    `gpus_left`: the GPUs of this host that are not sick.
    """
    attempts = attempts[_top(attempt.begin for attempt in attempts) :]
    last = attempts[-1]
    if last.trained:
        return None
    if last.mistake and _as_asked(attempts):
        return GiveUp("its input is wrong", mistake=True)
    lacks_gpus = settings.device == "cuda" and gpus_left < settings.devices
    if last.outcome == "interrupted" and not lacks_gpus:
        return "going-on"
    order: Sequence[Rung] = (*FIRST.get(last.class_ or "", ()), *AT_MOST)
    if lacks_gpus:
        order = ("one-device", "cpu") if gpus_left else ("cpu",)
    standing = _since_it_moved(attempts)
    for rung in order:
        taken = sum(attempt.begin == rung for attempt in (standing if rung == "same-again" else attempts))
        if taken < AT_MOST[rung] and step_down(settings, rung):
            return rung
    return GiveUp(
        f"{len(attempts)} attempts were made, the last {len(standing) + 1} of them without getting further than step "
        f"{max(attempt.step for attempt in attempts)}, and nothing is left to be changed"
    )


def step_down(settings: Settings, begin: Begin) -> Settings | None:
    """The settings one rung down; None where that rung would change nothing."""
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
        case "cpu":
            return _alone(settings, "cpu") if gpu else None
        case _:
            return settings


def climbed(settings: Settings, begins: Sequence[Begin]) -> Settings:
    """The settings of the last of these attempts, the first having been made with `settings`."""
    for begin in begins[_top(begins) :]:
        settings = step_down(settings, begin) or settings
    return settings


def preset_of(preset: Preset, settings: Settings, torch: str | None) -> Preset:
    """The preset with the variables of these settings, under a name that tells; the same where there are none."""
    chosen: dict[str, dict[str, str]] = {}
    if settings.fresh_allocator:
        chosen["fresh-allocator"] = allocator_variables(settings.device, torch)
    if settings.device == "cuda" and settings.no_hipblaslt:
        chosen["no-hipblaslt"] = NO_HIPBLASLT
    if settings.device == "cuda" and settings.no_p2p:
        chosen["no-p2p"] = NO_P2P
    if not chosen:
        return preset
    variables = {name: value for settings_ in chosen.values() for name, value in settings_.items()}
    # What the preset sets for one phase alone would win over what it sets for both.
    phases = {
        phase: {**of_phase, **{name: variables[name] for name in of_phase.keys() & variables.keys()}}
        for phase, of_phase in (("features", preset.features), ("train", preset.train))
    }
    name = f"{preset.name}{VARIANT}{'+'.join(chosen)}"
    changed = {"name": name, "variables": {**preset.variables, **variables}, **phases}
    return preset.model_copy(update=changed)


def allocator_variables(device: Literal["cpu", "cuda"], torch: str | None) -> dict[str, str]:
    """Settings under which memory is less likely to be cut into pieces too small to use."""
    if device == "cpu":
        return {"MALLOC_ARENA_MAX": "2"}
    version = Version(torch or "0")
    # ROCm wheels have segments that can grow since torch 2.12, and the neutral name since 2.9.
    value = "expandable_segments:True" if version >= Version("2.12") else "max_split_size_mb:512"
    return {"PYTORCH_ALLOC_CONF" if version >= Version("2.9") else "PYTORCH_HIP_ALLOC_CONF": value}


def _alone(settings: Settings, device: Literal["cpu", "cuda"]) -> Settings:
    """The same in one process. Its micro-batch is what a rank had: that adds up the same gradients."""
    several = settings.strategy in RANK_PER_DEVICE and settings.devices > 1
    micro = settings.micro_batch_size or (settings.share if several else None)
    return replace(settings, device=device, strategy="single", devices=1, micro_batch_size=micro)


def _top(begins: Iterable[Begin]) -> int:
    """Where the ladder was last begun at its top."""
    return max((number for number, begin in enumerate(begins) if begin == "by-hand"), default=0)


def _as_asked(attempts: Sequence[Attempt]) -> bool:
    """Whether no rung has changed anything yet."""
    return all(attempt.begin == "same-again" or attempt.begin not in AT_MOST for attempt in attempts)


def _since_it_moved(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts after the last one that got further than all before it."""
    furthest, last = 0, -1
    for number, attempt in enumerate(attempts):
        if attempt.step > furthest:
            furthest, last = attempt.step, number
    return attempts[last + 1 :]
