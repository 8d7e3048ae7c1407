"""The signatures, compared with excerpts of logs as programs really write them."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.text import one_line
from harness.diagnosis import explain_log
from harness.diagnosis.rules import load_signatures
from harness.matrix.cells import Matrix

Noise = Callable[[int, int], list[str]]
# Row 49 of the table, a rendezvous that never returns, leaves no line: stacks tell of it.
ROWS = set(range(1, 49))


def test_an_excerpt_is_explained(excerpt: Any) -> None:
    found = excerpt.explain([], [])
    assert (found.rule, found.class_) == (excerpt.rule, excerpt.class_)


def test_an_excerpt_is_explained_within_noise_and_beside_warnings(
    excerpt: Any, noise: Noise, warnings: list[str]
) -> None:
    half = 250
    before, after = noise(half, 7), noise(half, 8)
    found = excerpt.explain([*before, *warnings], [*warnings, *after])
    assert (found.rule, found.class_) == (excerpt.rule, excerpt.class_)
    if found.rule:
        number, text = found.lines[0].line, found.lines[0].text
        lines = [*before, *warnings, *excerpt.lines]
        assert number > half
        assert text[:40] in one_line(lines[number - 1])


def test_every_row_of_the_table_has_an_excerpt(excerpts: list[Any]) -> None:
    assert {excerpt.row for excerpt in excerpts} >= ROWS
    assert len(excerpts) >= 200


def test_every_signature_has_an_excerpt(excerpts: list[Any], warnings: list[str]) -> None:
    found = {excerpt.rule for excerpt in excerpts}
    for signature in load_signatures().of("log", "build", "kernel"):
        if signature.severity == "benign":
            assert any(signature.find(warning) for warning in warnings), signature.id
        else:
            assert signature.id in found, signature.id


def test_a_warning_alone_is_no_failure(warning: str) -> None:
    assert explain_log([warning], "train.log").class_ == "unknown"
    assert explain_log(["epoch 1: loss 0.6", warning, "epoch 2: loss 0.5"], "train.log").rule is None


def test_all_warnings_together_are_no_failure(warnings: list[str]) -> None:
    assert explain_log(warnings, "train.log").class_ == "unknown"


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_failure(noise: Noise, seed: int) -> None:
    found = explain_log(noise(5000, seed), "train.log", noise(500, seed + 100))
    assert (found.rule, found.lines) == (None, ())


@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(0, 60),
    words=st.lists(st.text(alphabet="abcxyz 0123456789.,:=_-/%", max_size=60)),
)
@settings(max_examples=60, deadline=None)
def test_no_noise_ever_becomes_a_failure(noise: Noise, seed: int, count: int, words: list[str]) -> None:
    mixed = [*noise(count, seed), *words]
    Random(seed).shuffle(mixed)
    assert explain_log(mixed, "train.log").rule is None


@given(st.lists(st.text(max_size=200), max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read(lines: list[str]) -> None:
    found = explain_log(lines, "train.log")
    assert found.rule is None or found.lines


def test_every_preset_is_in_the_matrix(matrix: Matrix) -> None:
    named = {preset for signature in load_signatures().signatures for preset in signature.presets}
    assert named
    assert named <= matrix.presets.keys()


def test_every_class_is_used() -> None:
    signatures = load_signatures()
    assert {signature.class_ for signature in signatures.signatures} == signatures.classes.keys()


def test_no_error_of_the_program_is_called_one_of_the_environment(excerpts: list[Any]) -> None:
    classes = load_signatures().classes
    programs = [excerpt for excerpt in excerpts if excerpt.class_ in ("user-code", "app-error")]
    assert len(programs) >= 30
    for excerpt in programs:
        assert classes[excerpt.explain([], []).class_].fault == "program"
