"""Tests of the objections to a result that follow from its own values and from what was seen of its run."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from harness.evidence.app_reports.memory import MemorySample, MemoryUse
from harness.evidence.files.app_files import Result, Training
from harness.evidence.files.kept_states import drawn_steps
from harness.evidence.outcome.decide import decide
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.outcome.request import Request
from harness.evidence.outcome.tolerances import TOLERANCE, tolerance_of
from tests.harness.evidence.outcome.judged import (
    GPU,
    MANY_SAMPLES,
    Values,
    evidence_of,
    fewer_epochs,
    found,
    lie,
    outcome,
    peaks,
)

LIES = {
    "fewer epochs": (fewer_epochs, "incomplete-result"),
    "epochs done but not their losses": (lambda v: v["epoch_losses"].pop(), "incomplete-result"),
    "an epoch cut short": (lie("steps_done", 31), "incomplete-result"),
    "short epochs throughout": (lambda v: v.update(steps_per_epoch=8, steps_done=16), "incomplete-result"),
    "no samples at all": (
        lambda v: v.update(samples={"train": 0, "validation": 0}, steps_per_epoch=0, steps_done=0, first_steps=[]),
        "incomplete-result",
    ),
    "numbers of the first steps left out": (lambda v: v.update(first_steps=[]), "incomplete-result"),
    "a rank without a device": (lie("world_size", 2), "incomplete-result"),
    "loss is NaN": (lie("first_steps.3.loss", math.nan), "not-finite"),
    "gradient norm is infinite": (lie("first_steps.0.gradient_norm", math.inf), "not-finite"),
    "validation loss is NaN": (lie("epoch_losses.1.validation", math.nan), "not-finite"),
    "other data": (lie("data.sha256", "e" * 64), "wrong-data"),
    "another workload": (lie("workload_hash", "e" * 64), "wrong-workload"),
    "no workload": (lie("workload_hash", None), "wrong-workload"),
    "another seed": (lie("options.seed", 8), "wrong-workload"),
    "other layers": (lie("options.hidden_layers", [32]), "wrong-workload"),
    "a GPU used, a CPU asked": (
        lambda v: (lie("device", "cuda")(v), lie("devices.0.device", "cuda:0")(v)),
        "wrong-device",
    ),
    "a device that belies the result": (lie("devices.0.device", "cuda:0"), "wrong-device"),
    "another torch": (lie("torch.version", "2.12.0+cpu"), "wrong-stack"),
    "steps by JAX, by torch asked": (
        lambda v: v.update(framework="jax", jax={"jax": "0.10.0", "jaxlib": "0.10.0"}),
        "wrong-stack",
    ),
    "wrong first loss": (lie("first_steps.0.loss", 0.69 * 1.01), "wrong-result"),
    "wrong last compared gradient": (lie("first_steps.15.gradient_norm", 0.9), "wrong-result"),
    "a rank more than asked for": (
        lambda v: v.update(world_size=2, devices=v["devices"] * 2, rank_weights_sha256=["c" * 64] * 2),
        "incomplete-result",
    ),
    "another model than asked for": (lie("model_kind", "attention"), "incomplete-result"),
    "another batch than the options say": (lie("batch_size", 8), "wrong-workload"),
    "another model hash": (lie("model.sha256", "e" * 64), "model-damaged"),
    "another model size": (lie("model.bytes", 1), "model-damaged"),
    "no parameters": (lie("model.parameters", 0), "model-damaged"),
    "other weights than those saved": (lie("rank_weights_sha256.0", "e" * 64), "wrong-result"),
    "a fraction of the data, told consistently": (
        lambda v: v.update(
            samples={"train": 64, "validation": 200}, steps_per_epoch=1, steps_done=2, first_steps=v["first_steps"][:2]
        ),
        "incomplete-result",
    ),
    "epochs of other numbers": (lambda v: [epoch.update(epoch=7) for epoch in v["epoch_losses"]], "incomplete-result"),
    "an epoch that was not validated": (lie("epoch_losses.0.validation", None), "incomplete-result"),
    "nothing to validate on": (lie("samples.validation", 0), "incomplete-result"),
    "no sessions": (
        lie("sessions", {"total": 0, "used": 0, "train": 0, "validation": 0}),
        "incomplete-result",
    ),
    "updates that changed nothing": (lie("steps_skipped", 30), "incomplete-result"),
    "more threads than the options say": (lie("threads", 64), "wrong-workload"),
    "another strategy than the options say": (lie("strategy", "ddp"), "wrong-workload"),
    "a type with a wider tolerance": (lie("dtype", "bfloat16"), "wrong-workload"),
    "a speed that is no number": (lie("throughput.samples_per_second", math.nan), "not-finite"),
    "a time that is no number": (lie("time", {"device": 1.0, "validate": math.nan}), "not-finite"),
}


CHOSEN = {"keep": "best", "patience": 2}


def chose(request: Request, values: Values, *inner: float, **changes: Any) -> tuple[Request, Evidence]:
    """Return a training of 5 epochs that ended after the epochs with these inner losses and kept the second."""
    epochs = [{"epoch": n, "train": 0.6, "validation": 0.6 + n / 100, "inner": loss} for n, loss in enumerate(inner, 1)]
    options = {**values["options"], "epochs": 5, **CHOSEN}
    numbers = {
        "options": options, "epochs_requested": 5, "epochs_done": len(inner), "stopped_early": True, "kept_epoch": 2,
        "steps_done": 16 * len(inner), "epoch_losses": epochs, "kept_weights_sha256": "9" * 64,
    }  # fmt: skip
    drawn = drawn_steps(Result.model_validate({**values, **numbers}), request.nonce)
    states = [{**values["states"][0], "file": f"mlp-{step}.pt", "step": step} for step in drawn]
    values = {**values, **numbers, "states": states, **changes}
    right = evidence_of(values)
    assert right.verification is not None
    assert right.verification.model is not None
    kept = right.verification.model.model_copy(update={"weights_sha256": "9" * 64})
    requested = {name: value for name, value in options.items() if name != "device"}
    return replace(request, options=requested), found(right, model=kept, validation_loss=epochs[1]["validation"])


def test_a_training_may_end_early_and_keep_an_earlier_epoch(request_: Request, result_values: Values) -> None:
    assert outcome(*chose(request_, result_values, 0.6, 0.5, 0.6, 0.5)) == ("completed", None)


@pytest.mark.parametrize(
    ("inner", "changes", "diagnosis"),
    [
        ((0.6, 0.5, 0.6), {}, "incomplete-result"),
        ((0.6, 0.5, 0.6, 0.5), {"stopped_early": False}, "incomplete-result"),
        ((0.4, 0.5, 0.6), {}, "wrong-result"),
        ((0.6, 0.5, 0.6, 0.5), {"kept_epoch": 4}, "wrong-result"),
        ((0.6, 0.5, 0.6, 0.5), {"kept_weights_sha256": "8" * 64}, "wrong-result"),
        ((0.6, 0.5, math.nan, 0.5), {}, "not-finite"),
    ],
    ids=["too early", "it does not say so", "not the best", "another", "other weights", "no number"],
)
def test_what_a_training_says_of_its_choice_has_to_follow_from_its_losses(
    inner: tuple[float, ...], changes: Values, diagnosis: str, request_: Request, result_values: Values
) -> None:
    assert outcome(*chose(request_, result_values, *inner, **changes)) == ("failed", diagnosis)


def test_the_saved_model_is_that_of_the_kept_epoch(request_: Request, result_values: Values) -> None:
    request, evidence = chose(request_, result_values, 0.6, 0.5, 0.6, 0.5)
    last = evidence_of(result_values).verification
    assert last is not None
    assert outcome(request, found(evidence, validation_loss=0.64)) == ("failed", "wrong-result")
    assert outcome(request, found(evidence, model=last.model)) == ("failed", "wrong-result")


@pytest.mark.parametrize("name", LIES)
def test_each_single_lie_in_a_result_is_caught(
    name: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    tell, diagnosis = LIES[name]
    tell(result_values)
    lying = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, lying) == ("failed", diagnosis)


@pytest.mark.parametrize(
    "path",
    ["devices.0.device", "torch.version", "torch.hip", "jax.jax", "strategy", "model.file", "injected_fault"],
)
def test_what_an_app_says_is_quoted(path: str, request_: Request, evidence: Evidence, result_values: Values) -> None:
    words = "7; verified, known-good"
    result_values |= {"jax": {"jax": "0.10.0"}, "framework": "jax" if path == "jax.jax" else "torch"}
    lie(path, words)(result_values)
    lying = replace(evidence, result=Result.model_validate(result_values), model_sha256=None)
    request_ = replace(request_, hip="6.3" if path == "torch.hip" else None)
    assert f"'{words}" in decide(request_, lying).detail


def test_a_gradient_norm_may_be_missing_where_a_scaler_skipped_the_step(
    request_: Request, evidence: Evidence, result_values: Values
) -> None:
    result_values["first_steps"][2]["gradient_norm"] = None
    float32 = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, float32) == ("failed", "not-finite")
    half = {"use_mixed_precision": True, "mixed_precision_dtype": "float16"}
    result_values["options"] |= half
    result_values["dtype"] = "float16"
    request_ = replace(request_, options={**request_.options, **half})
    for skipped, expected in ((0, ("failed", "not-finite")), (1, ("completed", None))):
        result_values["steps_skipped"] = skipped
        assert outcome(request_, replace(evidence, result=Result.model_validate(result_values))) == expected


@pytest.mark.parametrize("missing", ["first_steps", "states"])
def test_without_a_scaler_no_norm_is_missing_and_no_step_skipped(
    missing: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    assert outcome(request_, evidence) == ("completed", None)
    for one in result_values[missing]:
        one["gradient_norm"] = None
    assert outcome(request_, replace(evidence, result=Result.model_validate(result_values))) == ("failed", "not-finite")
    result_values["steps_skipped"] = 3
    skipped = replace(evidence, result=Result.model_validate(result_values))
    assert outcome(request_, skipped) == ("failed", "incomplete-result")


def test_options_that_no_record_should_hold_are_no_result(result_values: Values) -> None:
    result_values["options"]["x"] = "y" * (64 << 10)
    with pytest.raises(ValueError, match="more than 65536"):
        Result.model_validate(result_values)


@pytest.mark.parametrize(("mixed", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_the_tolerance_is_that_of_the_type_asked_for(
    mixed: bool, dtype: str, request_: Request, evidence: Evidence, result_values: Values
) -> None:
    options = {**request_.options, "use_mixed_precision": mixed}
    result_values["options"]["use_mixed_precision"] = mixed
    result_values["dtype"] = dtype
    for factor, expected in ((0.5, "completed"), (2.0, "failed")):
        changed = deepcopy(result_values)
        changed["first_steps"][5]["loss"] *= 1 + factor * TOLERANCE[dtype]
        lying = replace(evidence, result=Result.model_validate(changed))
        assert outcome(replace(request_, options=options), lying)[0] == expected


def test_the_tolerance_of_an_attention_model_grows_with_each_step_and_that_of_the_mlp_does_not() -> None:
    assert {tolerance_of("mlp", "bfloat16", step) for step in (1, 2, 16)} == {TOLERANCE["bfloat16"]}
    for kind in ("attention", "attention-small"):
        tolerances = [tolerance_of(kind, "float32", step) for step in (1, 2, 3)]
        assert tolerances == pytest.approx([1e-3, 3e-3, 9e-3])


class TestOnAGpu:
    @pytest.fixture
    def gpu_request(self, request_: Request) -> Request:
        return replace(request_, device="cuda", gpus=1, torch="2.9.1", rocm="6.3")

    @pytest.fixture
    def gpu_values(self, result_values: Values) -> Values:
        torch = {"version": "2.9.1+rocm6.3", "hip": "6.3.42131-fa1d09cbd", "cuda": None}
        return {**result_values, "device": "cuda", "devices": [GPU], "torch": torch}

    def decide(
        self, request: Request, evidence: Evidence, values: Values, seen: int | None = 1
    ) -> tuple[str, str | None]:
        return outcome(request, replace(evidence, result=Result.model_validate(values), gpus_seen=seen))

    def test_completed_when_seen_from_outside(
        self, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        assert self.decide(gpu_request, evidence, gpu_values) == ("completed", None)

    def test_asked_and_a_cpu_used(self, gpu_request: Request, evidence: Evidence, result_values: Values) -> None:
        assert self.decide(gpu_request, evidence, result_values) == ("failed", "wrong-device")

    @pytest.mark.parametrize("seen", [0, None])
    def test_said_but_not_seen_from_outside(
        self, seen: int | None, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        assert self.decide(gpu_request, evidence, gpu_values, seen) == ("failed", "wrong-device")

    def test_another_rocm_than_declared(self, gpu_request: Request, evidence: Evidence, gpu_values: Values) -> None:
        gpu_values["torch"]["hip"] = "6.2.41133-dd7f95766"
        assert self.decide(gpu_request, evidence, gpu_values) == ("failed", "wrong-stack")

    @pytest.mark.parametrize(("hip", "diagnosis"), [("7.15.26333", None), ("10.0.1", "wrong-stack")])
    def test_a_rocm_whose_hip_has_numbers_of_its_own(
        self, hip: str, diagnosis: str | None, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        gpu_values["torch"]["hip"] = hip
        request = replace(gpu_request, rocm="10.0.0", hip="7.15")
        assert self.decide(request, evidence, gpu_values)[1] == diagnosis

    @pytest.mark.parametrize(("ran", "diagnosis"), [("0.10.0", None), ("0.10.2", "wrong-stack"), (None, "wrong-stack")])
    def test_steps_that_jax_is_to_make(
        self, ran: str | None, diagnosis: str | None, gpu_request: Request, evidence: Evidence, gpu_values: Values
    ) -> None:
        gpu_values.update({"framework": "jax", "jax": {"jax": ran}} if ran else {})
        assert self.decide(replace(gpu_request, jax="0.10.0"), evidence, gpu_values)[1] == diagnosis

    def test_a_cuda_build(self, gpu_request: Request, evidence: Evidence, gpu_values: Values) -> None:
        gpu_values["torch"].update(hip=None, cuda="13.0")
        assert self.decide(gpu_request, evidence, gpu_values) == ("failed", "wrong-stack")


LIES_ABOUT_THE_FIRST = {
    "loss": (lie("earlier.0.first_steps.3.loss", 0.1), "wrong-result"),
    "NaN": (lie("earlier.0.epoch_losses.1.train", math.nan), "not-finite"),
    "a step less": (lie("earlier.0.steps_done", 31), "incomplete-result"),
    "an epoch less": (lambda v: fewer_epochs(v["earlier"][0]), "incomplete-result"),
    "skipped": (lie("earlier.0.steps_skipped", 30), "incomplete-result"),
    "first steps": (lie("earlier.0.first_steps", []), "incomplete-result"),
    "batch": (lie("earlier.0.batch_size", 32), "wrong-workload"),
    "no weights": (lie("earlier.0.rank_weights_sha256", []), "incomplete-result"),
    "not there": (lie("earlier", []), "incomplete-result"),
    "another": (lie("earlier.0.model_kind", "attention-small"), "incomplete-result"),
    "other samples": (lie("earlier.0.samples.validation", 100), "incomplete-result"),
    "samples of the other": (lie("earlier.0.samples.train", 1000), "incomplete-result"),
    "as many steps as the other would have": (
        lambda v: v["earlier"][0].update(steps_per_epoch=15, steps_done=30),
        "incomplete-result",
    ),
}


class TestSeveralModels:
    """Runs that train the mlp and then the attention model in the same process."""

    @pytest.fixture
    def both_request(self, request_: Request) -> Request:
        return replace(request_, options={**request_.options, "model": ["mlp", "attention"]})

    @pytest.fixture
    def both(self, result_values: Values) -> Values:
        first = {key: deepcopy(result_values[key]) for key in Training.model_fields if key in result_values}
        first |= {"model_kind": "mlp", "samples": {"train": 1020, "validation": 200}}
        second = deepcopy(result_values)
        second["model_kind"], second["earlier"] = "attention", [first]
        # The steps that the nonce draws for the attention model.
        for state, step in zip(second["states"], (5, 9, 15, 18, 24, 27), strict=True):
            state["step"] = step
        for step in second["first_steps"]:
            step["loss"] += 0.1
        second["options"]["model"] = ["mlp", "attention"]
        return second

    @pytest.mark.parametrize("found", [(), (None,), ("e" * 64,)])
    def test_every_model_file_is_looked_at(
        self, both_request: Request, both: Values, found: tuple[str | None, ...]
    ) -> None:
        evidence = replace(evidence_of(both), earlier_sha256=found)
        assert outcome(both_request, evidence) == ("failed", "model-damaged")

    def test_completed_when_each_agrees_with_its_own_reference(self, both_request: Request, both: Values) -> None:
        decided = decide(both_request, evidence_of(both))
        assert (decided.name, decided.detail) == (
            "completed",
            "2 epochs, 32 steps, then 2 epochs, 32 steps, verified",
        )

    @pytest.mark.parametrize("name", LIES_ABOUT_THE_FIRST)
    def test_a_lie_about_the_first_model_is_caught(self, name: str, both_request: Request, both: Values) -> None:
        evidence = evidence_of(both)
        tell, diagnosis = LIES_ABOUT_THE_FIRST[name]
        tell(both)
        decided = decide(both_request, replace(evidence, result=Result.model_validate(both)))
        assert (decided.name, decided.diagnosis) == ("failed", diagnosis)

    @pytest.mark.parametrize(
        ("step", "factor", "expected"),
        [(1, 1.0005, "completed"), (1, 1.002, "failed"), (3, 1.002, "completed"), (3, 1.02, "failed")],
    )
    def test_a_step_of_the_attention_model_is_held_to_its_own_tolerance(
        self, step: int, factor: float, expected: str, both_request: Request, both: Values
    ) -> None:
        evidence = evidence_of(both)
        both["first_steps"][step - 1]["gradient_norm"] *= factor
        assert decide(both_request, replace(evidence, result=Result.model_validate(both))).name == expected

    def test_the_model_that_is_wrong_is_named(self, both_request: Request, both: Values) -> None:
        evidence = evidence_of(both)
        both["earlier"][0]["first_steps"][0]["loss"] = 0.1
        assert decide(both_request, replace(evidence, result=Result.model_validate(both))).detail.startswith("mlp: ")

    def test_a_verification_of_one_model_is_none_for_two(self, both_request: Request, both: Values) -> None:
        evidence = evidence_of(both)
        assert outcome(both_request, found(evidence, earlier=())) == ("failed", "verification-failed")


class TestSeveralDevices:
    def claimed(self, values: Values, strategy: str, ranks: int, devices: int) -> Values:
        device = values["devices"][0]
        options = {**values["options"], "strategy": strategy, "devices": 2}
        return {
            **values,
            "options": options,
            "strategy": strategy,
            "world_size": ranks,
            "devices": [{**device, "rank": n if ranks > 1 else 0} for n in range(devices)],
            "rank_weights_sha256": values["rank_weights_sha256"] * ranks,
        }

    def request_of(self, request: Request, strategy: str) -> Request:
        return replace(request, devices=2, options={**request.options, "strategy": strategy, "devices": 2})

    @pytest.mark.parametrize(
        ("strategy", "ranks"), [("ddp", 2), ("averaging", 2), ("fsdp", 2), ("dp", 1), ("model-parallel", 1)]
    )
    def test_each_strategy_has_its_ranks(
        self, strategy: str, ranks: int, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        right = self.claimed(result_values, strategy, ranks, 2)
        for values, expected in (
            (right, ("completed", None)),
            (self.claimed(result_values, strategy, 3 - ranks, 2), ("failed", "incomplete-result")),
            (self.claimed(result_values, strategy, 1, 1), ("failed", "incomplete-result")),
            ({**right, "rank_weights_sha256": ["c" * 64] * (3 - ranks)}, ("failed", "incomplete-result")),
            ({**right, "options": {**right["options"], "devices": 1}}, ("failed", "wrong-workload")),
        ):
            changed = replace(evidence, result=Result.model_validate(values))
            assert outcome(self.request_of(request_, strategy), changed) == expected

    def test_one_rank_told_twice_is_not_two(self, request_: Request, evidence: Evidence, result_values: Values) -> None:
        values = self.claimed(result_values, "ddp", 2, 2)
        values["devices"][1]["rank"] = 0
        changed = replace(evidence, result=Result.model_validate(values))
        assert outcome(self.request_of(request_, "ddp"), changed) == ("failed", "incomplete-result")

    def test_ranks_that_end_with_different_weights(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        values = self.claimed(result_values, "ddp", 2, 2)
        values["rank_weights_sha256"] = ["c" * 64, "e" * 64]
        changed = replace(evidence, result=Result.model_validate(values))
        assert outcome(self.request_of(request_, "ddp"), changed) == ("failed", "wrong-result")


class TestMemory:
    @pytest.mark.parametrize(
        ("driver", "reserved", "expected"),
        [
            (18 * 10**9, 20 * 10**9, ("completed", None)),
            (18 * 10**9 + 1, 1, ("failed", "memory-limit")),
            (None, 18 * 10**9 + 1, ("failed", "memory-limit")),
            (None, 1, ("completed", None)),
            (None, None, ("failed", "incomplete-result")),
        ],
    )
    def test_the_limit_holds_for_the_drivers_word_where_there_is_one(
        self,
        driver: int | None,
        reserved: int | None,
        expected: tuple[str, str | None],
        request_: Request,
        evidence: Evidence,
        result_values: Values,
    ) -> None:
        values = {**result_values, "device": "cuda", "devices": [GPU], "memory": peaks(driver, reserved)}
        request = replace(request_, device="cuda", gpus=1, max_device_memory=18 * 10**9)
        changed = replace(evidence, result=Result.model_validate(values), gpus_seen=1)
        assert outcome(request, changed) == expected
        assert outcome(replace(request, max_device_memory=None), changed) == ("completed", None)

    def test_a_gpu_whose_memory_nobody_told_is_not_within_its_limit(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        request = replace(request_, max_device_memory=1)
        # On a CPU there is no device memory to limit.
        assert outcome(request, evidence) == ("completed", None)
        result = Result.model_validate({**result_values, "device": "cuda", "devices": [GPU]})
        seen = replace(evidence, result=result, gpus_seen=1)
        assert outcome(replace(request, device="cuda", gpus=1), seen) == ("failed", "incomplete-result")

    def test_every_rank_is_held_to_the_limit(
        self, request_: Request, evidence: Evidence, result_values: Values
    ) -> None:
        options = {**result_values["options"], "strategy": "ddp"}
        two = {"devices": [GPU, {**GPU, "rank": 1}], "world_size": 2, "rank_weights_sha256": ["c" * 64] * 2}
        values = {**result_values, **two, "device": "cuda", "options": options, "strategy": "ddp"}
        result = Result.model_validate({**values, "memory": peaks(10**9, 10**9)})
        request = replace(
            request_, device="cuda", gpus=2, devices=2, max_device_memory=2 * 10**9,
            options={**request_.options, "strategy": "ddp"},
        )  # fmt: skip
        for held, expected in ((10**9, ("completed", None)), (3 * 10**9, ("failed", "memory-limit"))):
            samples = (MemorySample(0, 1, 1, 0.0, 1, 10**9), MemorySample(1, 2, 1, 0.0, 1, held))
            seen = replace(evidence, result=result, gpus_seen=2, memory=MemoryUse.of(samples))
            assert outcome(request, seen) == expected

    def test_memory_that_grew_while_it_trained(self, request_: Request, evidence: Evidence) -> None:
        assert outcome(request_, replace(evidence, memory=MemoryUse.of(MANY_SAMPLES))) == ("failed", "memory-grows")
        still = tuple(replace(sample, rss_bytes=10**9) for sample in MANY_SAMPLES)
        assert outcome(request_, replace(evidence, memory=MemoryUse.of(still))) == ("completed", None)
