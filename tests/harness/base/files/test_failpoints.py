import re
import signal
import subprocess
import sys

import pytest

from harness.base.files.failpoints import POINTS, VARIABLE
from harness.base.paths import CHECKOUT

PROGRAM = "from harness.base.files.failpoints import reached\nfor name in 'aba': reached(name), print(name, flush=True)"


@pytest.mark.parametrize(
    ("wanted", "said", "died"),
    [("a", "", True), ("b", "a", True), ("a@2", "ab", True), ("a@3", "aba", False), ("", "aba", False)],
)
def test_the_harness_dies_at_the_point_that_was_asked_for(wanted: str, said: str, died: bool) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={VARIABLE: wanted}, capture_output=True, text=True, check=False)
    assert done.stdout.replace("\n", "") == said
    assert done.returncode == (-signal.SIGKILL if died else 0)


def test_every_point_is_in_the_code_and_every_one_in_the_code_is_named() -> None:
    source = [file.read_text(encoding="utf-8") for file in (CHECKOUT / "harness").rglob("*.py")]
    found = {name for text in source for name in re.findall(r'reached\("([^"]+)"\)', text)}
    assert found == set(POINTS)
    assert len(POINTS) == len(set(POINTS))
