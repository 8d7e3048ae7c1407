"""Tests that requirements of a user's program which contradict its stack are refused with their line."""

import pytest

from harness.matrix.cells import Matrix
from harness.matrix.programs import Program, ProgramCopy
from harness.matrix.requirements import contradiction


def program(*lines: str) -> Program:
    taken = ProgramCopy(folder="copy", version="1", requirements=lines)
    return Program(command=("x",), source="code", requirements="requirements.txt", taken=taken)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("# mine", "torch==2.4.1"), "requirements.txt:2: torch==2.4.1: stack cpu has torch 2.13.0"),
        (("Torch<2",), "requirements.txt:1: Torch<2: stack cpu has torch 2.13.0"),
        (("-r other.txt",), "requirements.txt:1: -r other.txt: is not a plain requirement"),
        (
            ("peft==0.19 \\", "    --hash=sha256:00"),
            "requirements.txt:1: peft==0.19 \\: has hashes, but each stack",
        ),
        (("torch @ https://example.org/torch.whl",), "names a URL or a path"),
        (("einops; python_version ~= '3'",), "requirements.txt:1: einops; python_version ~= '3': is not a plain"),
        (("einops; 'a' == 'b'",), "requirements.txt:1: einops; 'a' == 'b': is not a plain requirement"),
        ((f"einops; {'(' * 2000}os_name > '3'{')' * 2000}",), "is not a plain requirement"),
    ],
)
def test_a_line_that_cannot_be_had_is_named(matrix: Matrix, lines: tuple[str, ...], told: str) -> None:
    assert told in (contradiction(program(*lines), matrix.stacks["cpu"]) or "")


def test_every_package_of_the_stack_counts_where_its_lock_is_known(matrix: Matrix) -> None:
    stack, pinned = matrix.stacks["cpu"], {"numpy": "2.3.1", "torch": "2.13.0+cpu"}
    told = contradiction(program("torch==2.13.0", "numpy<2"), stack, pinned)
    assert (
        told == "requirements.txt:2: numpy<2: stack cpu has numpy 2.3.1; leave the line out, or run it in another stack"
    )
    for line in ("numpy>=2", "numpy<2; python_version < '3'", "einops==0.8"):
        assert contradiction(program(line), stack, pinned) is None


@pytest.mark.parametrize("line", ["torch>=2.4", "torch", "einops", "", "# torch==1", "tqdm>=4 # a bar"])
def test_others_are_left_to_what_resolves_them(matrix: Matrix, line: str) -> None:
    assert contradiction(program(line), matrix.stacks["cpu"]) is None
