import pytest

from harness.matrix.cells import Matrix
from harness.matrix.two_gpus import always_on_two, in_turn

STACKS = ("rocm7.2-torch2.14.0", "cpu", "rocm7.14.0-torch2.12.0", "rocm6.4-torch2.9.1")


def test_collectives_that_need_atomics_come_last_where_there_are_none(matrix: Matrix) -> None:
    assert in_turn(matrix, STACKS, atomics=False, several=True) == [*STACKS[1:], STACKS[0]]


@pytest.mark.parametrize(("atomics", "several"), [(True, True), (None, True), (False, False)])
def test_elsewhere_stacks_keep_their_order(matrix: Matrix, atomics: bool | None, several: bool) -> None:
    assert in_turn(matrix, STACKS, atomics=atomics, several=several) == list(STACKS)


def test_survivors_of_6_3_and_6_4_always_go_on(matrix: Matrix) -> None:
    always = {stack.rocm for stack in matrix.stacks.values() if stack.torch and always_on_two(matrix, stack)}
    assert always == {"6.3", "6.4"}


def test_a_version_stands_for_those_that_begin_so_and_no_other(matrix: Matrix) -> None:
    (step,) = (step for step in matrix.two_gpus if step.last_without_atomics)
    assert step.holds("7.2")
    assert step.holds("7.2.4")
    assert not step.holds("7.20")


def test_every_rocm_of_the_matrix_has_its_step(matrix: Matrix) -> None:
    for stack in matrix.stacks.values():
        assert stack.rocm is None or any(step.holds(stack.rocm) for step in matrix.two_gpus)
