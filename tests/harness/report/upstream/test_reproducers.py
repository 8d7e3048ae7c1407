"""Tests of the scripts in bug reports: they are short, use torch alone, and run to their end."""

import ast
import subprocess
from pathlib import Path

import pytest

from harness.base.paths import ENVIRONMENTS
from harness.diagnosis.rules import load_signatures
from harness.evidence.outcome.diagnoses import ENDED_FROM_OUTSIDE
from harness.report.upstream.bug_report import COMPONENTS, NOT_A_BUG, OF_PYTORCH
from harness.report.upstream.reproducers import LONGEST_LINES, SCRIPT_OF, SCRIPTS, reproducer

PYTHON = ENVIRONMENTS / "cpu-test/bin/python"
OF_THEMSELVES = {"itertools", "os", "sys", "tempfile", "time", "torch"}
FILES = sorted(SCRIPTS.iterdir())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_script_is_short_and_needs_torch_alone(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    compile(text, file.name, "exec")
    assert len(text.splitlines()) < LONGEST_LINES
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= OF_THEMSELVES


def test_scripts_and_lists_are_of_classes_that_there_are() -> None:
    classes = set(load_signatures().classes)
    assert {*SCRIPT_OF, *COMPONENTS, *OF_PYTORCH, *NOT_A_BUG} <= classes
    assert {f"{name}.py.txt" for name in SCRIPT_OF.values()} == {file.name for file in FILES}
    limits = {why for _, why in ENDED_FROM_OUTSIDE.values() if why and why.endswith("-limit")}
    assert limits <= NOT_A_BUG, "a run that a limit ended is nobody's bug"
    assert reproducer("disk-full") is None


def test_what_the_kernel_says_of_a_gpu_has_a_script_and_a_reset_a_component() -> None:
    classes = load_signatures().classes
    of_gpus = {name for name, one in classes.items() if one.gpu not in (None, "unharmed")}
    assert sorted(of_gpus - SCRIPT_OF.keys()) == [], "give them a script in reproducers.py"
    resets = {name for name in of_gpus if classes[name].gpu == "reset"}
    assert sorted(resets - COMPONENTS.keys()) == [], "give them a component in bug_report.py"


# torch.compile and processes of their own leave something behind; the others share a process, as torch starts slowly.
ALONE = (("all_reduce",), ("compiled",))
TOGETHER = tuple(sorted(set(SCRIPT_OF.values()) - {name for (name,) in ALONE}))
ONE_BY_ONE = "import runpy, sys; [runpy.run_path(file, run_name='__main__') for file in sys.argv[1:]]"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="needs the environment of the app's tests")
@pytest.mark.parametrize("names", [*ALONE, TOGETHER], ids="-".join)
def test_scripts_run_to_their_end_on_a_cpu(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        script = reproducer(next(class_ for class_, of_class in SCRIPT_OF.items() if of_class == name))
        assert script
        # On a CPU the scripts use bfloat16 in place of the GPU's float16, which takes many CPUs a minute.
        (tmp_path / name).write_text(script.replace("else torch.bfloat16", "else torch.float32"), encoding="utf-8")
    program = [*names] if len(names) == 1 else ["-c", ONE_BY_ONE, *names]
    done = subprocess.run(
        [PYTHON, "-I", *program],
        cwd=tmp_path,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("right on ") for line in done.stdout.splitlines()) == len(names)
    assert done.stdout.splitlines()[-1].startswith("right on ")
