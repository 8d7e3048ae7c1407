"""Worlds whose truth is known: how runs behave in each, and which answers of an evening are right."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from harness.base.paths import CHECKOUT
from harness.doctor.compatibility import is_outside
from harness.doctor.disk_order import disk_order
from harness.environments.capabilities import GB, Capabilities, stack_by_stack
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.search.stages.runs import Setting, StageRun

GPUS = (0, 1)


@dataclass(frozen=True)
class Behaviour:
    """How runs of one kind behave.

    `starts`: the share of runs that make their first step.
    `mtbf`: mean hours between failures.
    `sound_hours`: hours of training in which no run fails.
    `leaves_gpu_unhealthy`: the share of runs that leave their GPU unhealthy.
    `features`: the share of runs that pass the VPOC phase, which precedes training.
    """

    starts: float = 0.995
    mtbf: float = 100.0
    sound_hours: float = 0.0
    leaves_gpu_unhealthy: float = 0.0
    features: float = 1.0


SOUND, BROKEN = Behaviour(), Behaviour(starts=0.01, mtbf=0.02)
NO_FEATURES = Behaviour(features=0.01)
Acts = Callable[[StageRun], Behaviour]


@dataclass(frozen=True)
class Answer:
    """An evening's answer: the setting that is good on all its GPUs, whether each stack had its turn, and bad GPUs."""

    named: Setting | None
    settled: bool
    bad_gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class World:
    """A truth: how runs behave, which answers are right, whether GPUs can be reset, and which GPUs runs may use.

    `driver`: the version of the driver. `free_bytes`: the disk's free space; None for room for all stacks.
    """

    acts: Acts
    is_right: Callable[[Answer], bool]
    may_reset: bool = True
    gpus: tuple[int, ...] = GPUS
    driver: str | None = None
    free_bytes: int | None = None

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks that have room, in the order in which a campaign makes them."""
        able = Capabilities(self.gpus, "process", frozenset(), self.free_bytes, driver=self.driver)
        order = disk_order(the_matrix(), stacks(), (), able, [True] * len(self.gpus))
        return tuple(room.stack for room in stack_by_stack(order, able) if room.fits is not False)

    @property
    def screened(self) -> tuple[int, ...]:
        """The GPUs that runs may not use, because a screen is connected to them."""
        return tuple(gpu for gpu in GPUS if gpu not in self.gpus)


@cache
def the_matrix() -> Matrix:
    """Return the project's own matrix."""
    return load_matrix(CHECKOUT / "matrix.yaml")


@cache
def stacks() -> tuple[str, ...]:
    """Return the ROCm stacks of the default selection, in its order."""
    matrix = the_matrix()
    names = dict.fromkeys(cell.stack.name for cell in matrix.select("default"))
    return tuple(name for name in names if matrix.stacks[name].accelerator == "rocm")


def on_two(run: StageRun) -> bool:
    """Return whether a run uses both GPUs."""
    return len(run.gpus) > 1


def unnamed(answer: Answer) -> bool:
    """Return whether an answer is right if nothing is good on two GPUs: none named or blamed, every stack tried."""
    return answer == Answer(None, settled=True)


def named(is_right: Callable[[Setting], bool]) -> Callable[[Answer], bool]:
    """Return a function that says whether the setting that an answer names is right."""
    return lambda answer: answer.named is not None and is_right(answer.named)


def one_stack(chance: random.Random) -> World:
    """One of the stacks works on two GPUs, with any preset and strategy; all stacks work on one GPU."""
    only = chance.choice(stacks())
    return World(
        lambda run: SOUND if not on_two(run) or run.cell.stack.name == only else BROKEN,
        named(lambda setting: setting.cell.stack.name == only),
    )


def only_no_p2p(_: random.Random) -> World:
    """On two GPUs only the preset no-p2p helps, whatever the stack."""
    return World(
        lambda run: SOUND if not on_two(run) or run.cell.preset.name == "no-p2p" else BROKEN,
        named(lambda setting: setting.cell.preset.name == "no-p2p"),
    )


def only_averaging(_: random.Random) -> World:
    """Collectives fail with every preset, and averaging works on every stack."""
    return World(
        lambda run: SOUND if not on_two(run) or run.workload.strategy == "averaging" else BROKEN,
        named(lambda setting: setting.strategy == "averaging"),
    )


def one_bad_gpu(chance: random.Random) -> World:
    """Most runs that use one of the GPUs fail."""
    bad = chance.choice(GPUS)
    return World(
        lambda run: Behaviour(0.3, 0.1) if bad in run.gpus else SOUND,
        lambda answer: answer.named is None and answer.bad_gpus == (bad,),
    )


def hangs_after_an_hour(_: random.Random) -> World:
    """Every training hangs minutes after its first hour."""
    return World(lambda _run: Behaviour(mtbf=0.1, sound_hours=1.0), unnamed)


def only_7(_: random.Random) -> World:
    """Only ROCm 7.x trains."""
    return World(
        lambda run: SOUND if (run.cell.stack.rocm or "").startswith("7.") else Behaviour(0.1, 0.05),
        named(lambda setting: (setting.cell.stack.rocm or "").startswith("7.")),
    )


def only_6(_: random.Random) -> World:
    """Only ROCm 6.x trains."""
    return World(
        lambda run: SOUND if (run.cell.stack.rocm or "").startswith("6.") else Behaviour(0.1, 0.05),
        named(lambda setting: (setting.cell.stack.rocm or "").startswith("6.")),
    )


def poisoning_stack(_: random.Random) -> World:
    """The first stack's runs complete, but seven of ten leave a GPU on which the next run would fail."""
    first = stacks()[0]
    return World(
        lambda run: Behaviour(leaves_gpu_unhealthy=0.7) if run.cell.stack.name == first else SOUND,
        named(lambda setting: setting.cell.stack.name != first),
    )


def failing_host(_: random.Random) -> World:
    """Every run may fail, whatever its cell: only six of ten start, and one fails in 24 minutes of training."""
    return World(lambda _run: Behaviour(0.6, 0.4), unnamed)


def nothing_on_two(_: random.Random) -> World:
    """Everything works on one GPU, and nothing on two."""
    return World(lambda run: BROKEN if on_two(run) else SOUND, unnamed)


def two_good_one_flaky(chance: random.Random) -> World:
    """Three stacks work on two GPUs; one of them fails once in 48 minutes on average."""
    flaky, *good = chance.sample(stacks(), 3)

    def acts(run: StageRun) -> Behaviour:
        name = run.cell.stack.name
        if not on_two(run) or name in good:
            return SOUND
        return Behaviour(0.9, 0.8) if name == flaky else BROKEN

    return World(acts, named(lambda setting: setting.cell.stack.name in good))


def _only_preset(name: str) -> World:
    """Every cell passes the smoke stage, but only the cells of one preset pass a later stage."""
    return World(
        lambda run: SOUND if run.workload.smoke_test or run.cell.preset.name == name else BROKEN,
        named(lambda setting: setting.cell.preset.name == name),
    )


def only_no_sdma(_: random.Random) -> World:
    """Only no-sdma trains, although all presets pass the smoke stage."""
    return _only_preset("no-sdma")


def only_notes_stable(_: random.Random) -> World:
    """Only notes-stable trains, although all presets pass the smoke stage."""
    return _only_preset("notes-stable")


def naive_hangs(_: random.Random) -> World:
    """The VPOC phase hangs with the user's original option `naive`, and works with `chunked`."""
    return World(
        lambda run: SOUND if run.workload.vpoc_path != "naive" else NO_FEATURES,
        named(lambda setting: dict(setting.options).get("vpoc_path") == "chunked"),
    )


def chunked_and_math(_: random.Random) -> World:
    """The VPOC phase needs `chunked`, and attention also needs `sdpa math`."""

    def acts(run: StageRun) -> Behaviour:
        if run.workload.vpoc_path == "naive":
            return NO_FEATURES
        return SOUND if run.workload.sdpa == "math" or "attention" not in run.workload.model else BROKEN

    def is_right(setting: Setting) -> bool:
        options = dict(setting.options)
        return options.get("vpoc_path") == "chunked" and options.get("sdpa") == "math"

    return World(acts, named(is_right))


def old_driver_little_disk(_: random.Random) -> World:
    """The driver supports ROCm 6.3 to 7.2, nothing else trains, and there is room for few stacks."""
    driver = "6.16.13"
    return World(
        lambda run: BROKEN if is_outside(driver, run.cell.stack) else SOUND,
        named(lambda setting: not is_outside(driver, setting.cell.stack)),
        driver=driver,
        free_bytes=30 * GB,
    )


WORLDS: Mapping[str, Callable[[random.Random], World]] = {
    "one stack works on two GPUs": one_stack,
    "only no-p2p helps": only_no_p2p,
    "only averaging works on two": only_averaging,
    "one GPU is bad": one_bad_gpu,
    "all hangs after an hour": hangs_after_an_hour,
    "only ROCm 7.x trains": only_7,
    "only ROCm 6.x trains": only_6,
    "the first stack poisons its GPU": poisoning_stack,
    "the host fails everything": failing_host,
    "everything on one GPU, nothing on two": nothing_on_two,
    "two stacks are good, one is flaky": two_good_one_flaky,
    "only no-sdma trains": only_no_sdma,
    "only notes-stable trains": only_notes_stable,
    "the VPOC phase hangs unless chunked": naive_hangs,
    "VPOC needs chunked, attention sdpa math": chunked_and_math,
}


def _without_reset(world: Callable[[random.Random], World]) -> Callable[[random.Random], World]:
    return lambda chance: replace(world(chance), may_reset=False)


def _with_a_screen(world: Callable[[random.Random], World]) -> Callable[[random.Random], World]:
    return lambda chance: replace(world(chance), gpus=GPUS[:1])


HINDERED: Mapping[str, Callable[[random.Random], World]] = {
    "no reset: one stack works on two GPUs": _without_reset(one_stack),
    "no reset: only no-p2p helps": _without_reset(only_no_p2p),
    "no reset: only ROCm 7.x trains": _without_reset(only_7),
    "no reset: the VPOC phase hangs unless chunked": _without_reset(naive_hangs),
    "a screen on one GPU: only ROCm 6.x trains": _with_a_screen(only_6),
    "a screen on one GPU: only notes-stable trains": _with_a_screen(only_notes_stable),
    "a screen on one GPU: the host fails everything": _with_a_screen(failing_host),
}
LITTLE_DISK: Mapping[str, Callable[[random.Random], World]] = {"old driver, little disk": old_driver_little_disk}
