"""Tests of the sieve: it skips what programs print while they train, and nothing that a signature looks for."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.explain_log import explain_files
from harness.diagnosis.lines import BLOCK
from harness.diagnosis.patterns import kind_of
from harness.diagnosis.rules import Signature, load_signatures
from harness.diagnosis.scan import IN_A_LOG, sieve_of

Noise = Callable[[int, int], list[str]]
PATTERNS = [(one, pattern) for one in load_signatures().signatures for pattern in one.expressions]
ORDINARY = [
    "epoch {0}/200: training loss 0.{1}, validation loss 0.{0}, accuracy 0.{1}",
    "2026-11-20 10:11:12,{0} INFO trainer: step {1}/100000 loss 1.{0}e-0{1} lr 1e-4 grad_norm {1}.{0}",
    "[rank{0}]: {{'loss': 0.{1}, 'grad_norm': {0}.{1}, 'learning_rate': 1.{0}e-05, 'epoch': {1}.0}}",
    "level=info step={0} loss={1}.0 inf_steps=0",
    " 43%|####      | {0}/{1} [00:1{0}<01:{1}, 3.{0}it/s, loss=0.{1}]\r 44%|",
    "Loss: tensor(0.{0}, device='cuda:{1}')",
]


@pytest.mark.parametrize("line", ORDINARY)
def test_lines_of_a_training_are_passed_over(line: str) -> None:
    block = "\n".join(line.format(n % 10, n) for n in range(2000))
    assert not sieve_of()(block)
    assert sieve_of()(f"{block}\n{line.format(1, 2)}, loss nan\n")


@pytest.mark.parametrize(
    "before", ["", "[rank1]: ", "    | ", "[rank1]:     | ", "2026-11-20 10:00:00,123 ", "10%|# | 1/9 [00:01<00:09]\r"]
)
def test_what_is_written_before_a_line_hides_nothing(before: str) -> None:
    for line in ("KeyError: 'lr'", "Aborted (core dumped)"):
        assert sieve_of()(f"epoch 1\n{before}{line}\nepoch 2")


def test_every_excerpt_is_read(excerpts: list[Any]) -> None:
    for excerpt in excerpts:
        where = ("kernel",) if excerpt.kernel else IN_A_LOG
        if excerpt.rule:
            assert sieve_of(where)("\n".join(excerpt.lines)), excerpt


@given(st.data(), st.sampled_from(PATTERNS))
@settings(max_examples=300, deadline=None)
def test_no_line_that_a_signature_finds_is_of_a_kind_that_it_refuses(
    data: st.DataObject, one: tuple[Signature, str]
) -> None:
    signature, pattern = one
    line = data.draw(st.from_regex(pattern, fullmatch=True))
    if signature.find(line):
        assert signature.may_be_of(kind_of(line))
        assert any(text in kind_of(line) for text in signature.needed_of_kinds)


def test_a_fault_is_found_and_placed_in_a_large_log(noise: Noise) -> None:
    ordinary = [line.format(n % 10, n) for n in range(4000) for line in ORDINARY]
    own = ["Traceback (most recent call last):", '  File "/a.py", line 7, in f', "    raise X(1)", "FooError: x"]
    lines = [*noise(5000, 1), *ordinary, *own, *ordinary]
    log = "\n".join(lines).encode()
    assert len(log) > 8 * BLOCK
    found = explain_files((io.BytesIO(log), "train.log"))
    place = 5001 + len(ordinary)
    assert (found.rule, [line.line for line in found.lines]) == ("raised-by-the-program", [place + 3, place + 1])


def test_a_traceback_may_end_in_the_next_block() -> None:
    quiet = "epoch 1, loss 0.5\n"
    begins = 'Traceback (most recent call last):\n  File "/a.py", line 7, in f\n    raise Own(1)\n'

    def explained(exception: str) -> str | None:
        """Return the rule for a traceback in one block, its exception in the next, and an error outside in a third."""
        first = "\n".join(["x" * (BLOCK - len(begins) - 1), begins])
        second = (exception + quiet * BLOCK)[: BLOCK - 1] + "\n"
        text = f"{first}{second}FooError: not raised\n"
        assert (len(first), len(second)) == (BLOCK, BLOCK)
        return explain_files((io.BytesIO(text.encode()), "x")).rule

    # Nothing shows who raised the error outside of the traceback, so no rule finds it.
    assert explained("Own: ended\n") is None
    assert explained("FooError: ended\n") == "raised-by-the-program"
