"""Tests of which fallback is next, on synthetic histories."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.matrix.cells import Preset
from harness.training.fallbacks import (
    AT_MOST,
    PREFERRED,
    RESTARTS_AT_MOST,
    Attempt,
    AttemptSettings,
    Begin,
    Exhausted,
    allocator_variables,
    next_fallback,
    preset_of,
    settings_after,
    with_fallback,
)

if TYPE_CHECKING:
    from harness.matrix.strategies import Strategy

CPU = AttemptSettings("cpu", "single", 1, batch_size=64)
GPU = AttemptSettings("cuda", "single", 1, batch_size=64)
TWO = AttemptSettings("cuda", "ddp", 2, batch_size=64)
STEPS = 20


def failed(begin: Begin = "first", class_: str = "crash", step: int = 0) -> Attempt:
    return Attempt(begin, "failed", class_, step)


def fallbacks_of(
    settings: AttemptSettings,
    class_: str,
    *,
    gpus: int = 2,
    moves: bool = False,
    allow_cpu: bool = True,
    own_program: bool = False,
) -> list[Begin]:
    """Return every fallback of a training whose attempts all end the same way, until no fallback is left."""
    begins: list[Begin] = ["first"]
    attempts: list[Attempt] = []
    while True:
        attempts.append(failed(begins[-1], class_, min(len(attempts), STEPS) if moves else 0))
        begin = next_fallback(
            attempts, settings_after(settings, begins), gpus, allow_cpu=allow_cpu, own_program=own_program
        )
        if isinstance(begin, Exhausted):
            return begins[1:]
        assert begin is not None
        begins.append(begin)


def test_all_fallbacks_of_two_gpus_are_taken_in_order() -> None:
    assert fallbacks_of(TWO, "crash") == [
        *["same-again"] * 2,
        "fresh-allocator",
        *["smaller-micro-batch"] * 3,
        "no-hipblaslt",
        "no-p2p",
        "one-device",
        "cpu",
    ]


def test_of_a_program_of_the_users_own_only_variables_are_changed() -> None:
    variables = [*["same-again"] * 2, "fresh-allocator", "no-hipblaslt", "no-p2p"]
    assert fallbacks_of(TWO, "crash", own_program=True) == variables
    exhausted = next_fallback([failed()], TWO, 1, own_program=True)
    assert exhausted == Exhausted(
        "1 attempt was made, none of which left a step to continue from, and no healthy GPU is left"
    )


def test_the_cpu_takes_over_only_where_it_is_allowed() -> None:
    assert fallbacks_of(TWO, "crash", allow_cpu=False) == fallbacks_of(TWO, "crash")[:-1]
    assert fallbacks_of(GPU, "missing-arch", allow_cpu=False)[0] == "same-again"
    for left, why in ((1, "nothing is left to be changed"), (0, "no healthy GPU is left")):
        attempts = [failed(begin) for begin in ("first", *fallbacks_of(GPU, "crash", allow_cpu=False))]
        exhausted = next_fallback(attempts, settings_after(GPU, [one.begin for one in attempts]), left)
        assert isinstance(exhausted, Exhausted)
        assert exhausted.why.endswith(
            f"{why} on a GPU; --allow-cpu trains on the CPU instead, from the last checkpoint"
        )
    on_cpu = next_fallback([failed(begin) for begin in ("first", *fallbacks_of(CPU, "crash"))], CPU, 0)
    assert isinstance(on_cpu, Exhausted)
    assert "--allow-cpu" not in on_cpu.why


def test_in_another_stack_all_fallbacks_begin_again() -> None:
    begins: list[Begin] = ["first"]
    while True:
        attempts = [failed(begin) for begin in begins]
        begin = next_fallback(attempts, settings_after(GPU, begins), 1, others=2, allow_cpu=True)
        if isinstance(begin, Exhausted) or begin is None:
            break
        begins.append(begin)
    of_stack = [*["same-again"] * 2, "fresh-allocator", *["smaller-micro-batch"] * 3, "no-hipblaslt"]
    on_gpus = ["first", *of_stack, "other-stack", *of_stack, "other-stack", *of_stack, "cpu"]
    assert begins[: len(on_gpus)] == on_gpus
    assert settings_after(GPU, begins[:9]) == replace(GPU, stack=1)
    assert settings_after(GPU, [*begins[: len(on_gpus)], "by-hand"]) == GPU
    missing = [failed(class_="missing-arch")]
    assert next_fallback(missing, GPU, 1, others=2) == "other-stack"
    assert next_fallback(missing, replace(GPU, stack=2), 1, others=2) == "same-again"
    # Without a healthy GPU, no other stack helps.
    assert next_fallback(missing, GPU, 0, others=2, allow_cpu=True) == "cpu"


def test_fallbacks_that_would_change_nothing_are_left_out() -> None:
    assert fallbacks_of(CPU, "crash") == [*["same-again"] * 2, "fresh-allocator", *["smaller-micro-batch"] * 3]
    one_sample = replace(CPU, batch_size=1)
    assert fallbacks_of(one_sample, "crash") == [*["same-again"] * 2, "fresh-allocator"]
    assert "no-p2p" not in fallbacks_of(GPU, "crash")
    assert "one-device" not in fallbacks_of(GPU, "crash")
    assert "no-p2p" not in fallbacks_of(replace(TWO, strategy="averaging"), "crash")


@pytest.mark.parametrize(
    ("class_", "first"),
    [
        ("oom-gpu", ["fresh-allocator", "smaller-micro-batch", "smaller-micro-batch", "smaller-micro-batch"]),
        ("oom-host", ["fresh-allocator", "smaller-micro-batch"]),
        ("hipblaslt-kernel", ["no-hipblaslt", "same-again"]),
        ("blas-init", ["no-hipblaslt", "same-again"]),
        ("hang-collective", ["no-p2p", "one-device", "same-again"]),
        ("rccl", ["no-p2p", "one-device"]),
        ("missing-arch", ["cpu"]),
        ("hang-forward", ["same-again", "same-again", "fresh-allocator"]),
    ],
)
def test_the_diagnosis_says_what_is_tried_first(class_: str, first: list[Begin]) -> None:
    assert fallbacks_of(TWO, class_)[: len(first)] == first


def test_another_diagnosis_takes_its_own_fallbacks_and_those_taken_stay() -> None:
    attempts = [failed(class_="oom-gpu"), failed("fresh-allocator", "hipblaslt-kernel")]
    assert next_fallback(attempts, settings_after(GPU, ["first", "fresh-allocator"]), 1) == "no-hipblaslt"
    settings = settings_after(GPU, ["first", "fresh-allocator", "no-hipblaslt", "smaller-micro-batch", "same-again"])
    assert settings == replace(GPU, fresh_allocator=True, no_hipblaslt=True, micro_batch_size=32)


def test_a_training_that_moves_is_tried_the_same_way_again_as_often_as_it_moves() -> None:
    taken = fallbacks_of(CPU, "crash", moves=True)
    assert taken[: STEPS + 2] == ["same-again"] * (STEPS + 2)
    assert taken[STEPS + 2 :] == ["fresh-allocator", *["smaller-micro-batch"] * 3]


def test_an_interrupted_attempt_costs_nothing() -> None:
    attempts = [failed(), Attempt("same-again", "interrupted")]
    assert next_fallback(attempts, CPU, 0) == "resumed"
    attempts = [failed(), Attempt("same-again", "interrupted"), failed("resumed")]
    assert next_fallback(attempts, CPU, 0) == "same-again"
    assert settings_after(GPU, ["first", "cpu", "resumed"]) == replace(GPU, device="cpu")


def test_a_trained_model_ends_it() -> None:
    assert next_fallback([failed(), Attempt("same-again", "completed", trained=True)], CPU, 0) is None


def test_wrong_input_ends_it_at_once_unless_a_fallback_brought_it_about() -> None:
    wrong = Attempt("first", "failed", "app-error", mistake=True)
    exhausted = next_fallback([wrong], GPU, 1)
    assert isinstance(exhausted, Exhausted)
    assert exhausted.mistake
    again = [failed(), replace(wrong, begin="same-again")]
    assert next_fallback(again, GPU, 1) == exhausted
    smaller = [failed(class_="oom-gpu"), replace(wrong, begin="fresh-allocator")]
    assert next_fallback(smaller, settings_after(GPU, ["first", "fresh-allocator"]), 1) == "same-again"


def test_what_was_exhausted_is_tried_from_the_top_when_it_is_asked_for_once_more() -> None:
    begins: list[Begin] = ["first", *fallbacks_of(CPU, "crash")]
    attempts = [failed(begin) for begin in begins]
    assert isinstance(next_fallback(attempts, settings_after(CPU, begins), 0), Exhausted)
    begins.append("by-hand")
    assert settings_after(CPU, begins) == CPU
    assert next_fallback([*attempts, failed("by-hand")], CPU, 0) == "same-again"


def test_after_resets_of_several_gpus_one_is_soon_used_alone() -> None:
    begins = fallbacks_of(TWO, "gpu-reset", allow_cpu=False)
    assert begins[:4] == ["same-again", "same-again", "no-p2p", "one-device"]
    assert "no-p2p" not in fallbacks_of(GPU, "gpu-reset", allow_cpu=False)


def test_unhealthy_gpus_are_left_alone() -> None:
    assert next_fallback([failed(class_="unhealthy-gpu")], TWO, 2) == "same-again"
    assert next_fallback([failed(class_="unhealthy-gpu")], TWO, 1) == "one-device"
    assert next_fallback([failed(class_="unhealthy-gpu")], TWO, 0, allow_cpu=True) == "cpu"
    assert isinstance(next_fallback([failed(class_="unhealthy-gpu")], TWO, 0), Exhausted)
    assert next_fallback([failed(class_="unhealthy-gpu")], GPU, 1) == "same-again"
    assert next_fallback([failed(class_="unhealthy-gpu")], GPU, 0, allow_cpu=True) == "cpu"
    assert next_fallback([failed(class_="crash")], CPU, 0) == "same-again"
    interrupted = Attempt("first", "interrupted")
    left = [next_fallback([interrupted], TWO, healthy, allow_cpu=True) for healthy in (2, 1, 0)]
    assert left == ["resumed", "one-device", "cpu"]


def test_a_smaller_micro_batch_is_half_of_what_a_rank_has() -> None:
    sizes = [settings_after(TWO, ["first", *["smaller-micro-batch"] * n]).micro_batch_size for n in range(5)]  # type: ignore[list-item]
    assert sizes == [None, 16, 8, 4, 2]
    assert with_fallback(replace(GPU, micro_batch_size="auto"), "smaller-micro-batch") == replace(
        GPU, micro_batch_size=32
    )
    assert with_fallback(replace(GPU, micro_batch_size=1), "smaller-micro-batch") is None


def test_one_device_adds_up_the_gradients_that_the_ranks_had() -> None:
    assert with_fallback(TWO, "one-device") == AttemptSettings("cuda", "single", 1, 64, micro_batch_size=32)
    kept = with_fallback(replace(TWO, micro_batch_size=8), "one-device")
    assert kept == AttemptSettings("cuda", "single", 1, 64, micro_batch_size=8)
    parts = with_fallback(replace(TWO, strategy="model-parallel"), "one-device")
    assert parts == AttemptSettings("cuda", "single", 1, 64)


def test_the_preset_is_named_for_what_was_changed_and_wins_over_the_users() -> None:
    preset = Preset(
        name="mine",
        description="d",
        variables={"TORCH_BLAS_PREFER_HIPBLASLT": "1", "OTHER": "x"},
        train={"NCCL_P2P_DISABLE": "0"},
    )
    assert preset_of(preset, TWO, "2.9.1") == preset
    changed = preset_of(preset, replace(TWO, fresh_allocator=True, no_hipblaslt=True, no_p2p=True), "2.9.1")
    assert changed.name == "mine~fresh-allocator+no-hipblaslt+no-p2p"
    expected = {
        "TORCH_BLAS_PREFER_HIPBLASLT": "0",
        "DISABLE_ADDMM_CUDA_LT": "1",
        "NCCL_P2P_DISABLE": "1",
        "HSA_ENABLE_PEER_SDMA": "0",
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:512",
        "OTHER": "x",
    }
    assert changed.variables_of("train") == expected
    assert changed.phases == preset.phases
    # Variables that only a GPU reads are not set for an attempt on the CPU.
    on_cpu = preset_of(preset, replace(CPU, no_hipblaslt=True, no_p2p=True), "2.9.1")
    assert on_cpu == preset


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("2.5.1", {"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512"}),
        ("2.9.1", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}),
        ("2.13.0", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        (None, {"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512"}),
    ],
)
def test_the_allocator_is_spoken_to_as_its_version_understands(torch: str | None, expected: dict[str, str]) -> None:
    assert allocator_variables("cuda", torch) == expected
    assert allocator_variables("cpu", torch) == {"MALLOC_ARENA_MAX": "2"}


strategies = st.sampled_from(["single", "dp", "ddp", "averaging", "fsdp", "model-parallel"])
settings_ = st.builds(
    AttemptSettings,
    device=st.sampled_from(["cpu", "cuda"]),
    strategy=cast("st.SearchStrategy[Strategy]", strategies),
    devices=st.integers(1, 8),
    batch_size=st.integers(1, 512),
    micro_batch_size=st.one_of(st.none(), st.just("auto"), st.integers(1, 512)),
)
classes = st.sampled_from([*PREFERRED, "crash", "killed", "hang", "not-finite", "unheard-of", None])
# The end of an attempt: its class, the step that it reached, and the number of GPUs that are then left.
fates = st.tuples(classes, st.integers(0, STEPS), st.integers(0, 8))


@given(settings_, st.lists(fates, min_size=1, max_size=200), st.booleans())
def test_it_never_continues_for_ever_and_no_fallback_is_taken_more_often_than_it_may(
    asked: AttemptSettings,
    endings: list[tuple[str | None, int, int]],
    allow_cpu: bool,
) -> None:
    begins: list[Begin] = ["first"]
    attempts: list[Attempt] = []
    for class_, step, gpus in endings * 200:
        attempts.append(Attempt(begins[-1], "failed", class_, step))
        begin = next_fallback(attempts, settings_after(asked, begins), gpus, allow_cpu=allow_cpu)
        if isinstance(begin, Exhausted):
            break
        assert begin is not None
        begins.append(begin)
    else:
        pytest.fail("it never ends")
    taken = Counter(begins)
    assert all(taken[one] <= most for one, most in AT_MOST.items() if one != "same-again")
    # Two attempts before the first progress, and two more for each time that a later step was reached.
    assert taken["same-again"] <= AT_MOST["same-again"] * (STEPS + 1)
    # Settings that were changed stay changed, and each fallback changes something.
    reached = [settings_after(asked, begins[: n + 1]) for n in range(len(begins))]
    for begin, (before, now) in zip(begins[1:], pairwise(reached), strict=True):
        assert (begin == "same-again") == (before == now)
    assert all(now.batch_size == asked.batch_size for now in reached)
    assert allow_cpu or all(now.device == asked.device for now in reached)


@pytest.mark.parametrize(("seconds", "ends"), [(179.0, True), (181.0, False)])
def test_a_program_that_says_it_gets_further_is_not_restarted_without_end(seconds: float, ends: bool) -> None:
    attempts = [replace(failed(step=number), seconds=seconds) for number in range(1, RESTARTS_AT_MOST + 1)]
    assert next_fallback(attempts[1:], GPU, 1, own_program=True) == "same-again"
    found = next_fallback(attempts, GPU, 1, own_program=True)
    assert isinstance(found, Exhausted) == ends
    assert not ends or "the last 20 attempts ran for 60 min together" in str(found)
    # What our own app says of its steps is checked.
    assert next_fallback(attempts, GPU, 1) == "same-again"
