import os
import subprocess
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.slurm.job_script import JobOptions, job_script


def test_a_script_has_all_in_it_and_runs_the_command_in_place_of_its_shell() -> None:
    options = JobOptions("r1", Path("/shared/my results/r1.txt"), 61.0, "gpus", exclude=("n1", "n2"), gpus="gpu:2")
    assert job_script(options, ["python", "-m", "harness", "a b"], '{"x": "$HOME"}') == (
        "#!/bin/sh\n"
        "#SBATCH --job-name=r1\n"
        "#SBATCH --output=/dev/null\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --time=2\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --partition=gpus\n"
        "#SBATCH --exclude=n1,n2\n"
        "#SBATCH --gres=gpu:2\n"
        "[ ! -h '/shared/my results' ] || exit\n"
        "rm -f -- '/shared/my results/r1.txt' || exit\n"
        "set -C\n"
        "exec >'/shared/my results/r1.txt' 2>&1\n"
        "exec python -m harness 'a b' <<'END_OF_REQUEST'\n"
        '{"x": "$HOME"}\n'
        "END_OF_REQUEST\n"
    )


def test_what_a_job_prints_goes_through_no_link_that_was_planted_for_it(tmp_path: Path) -> None:
    others = tmp_path / "authorized_keys"
    others.write_text("mine\n")
    output = tmp_path / '100% "a" r1.txt'
    output.symlink_to(others)
    script = job_script(JobOptions("r1", output, 60.0), ["sh", "-c", "cat; echo said >&2"], "asked")
    placed = script.replace(os.fspath(output), os.fspath(tmp_path / "placed.txt"), 1)
    subprocess.run(["sh"], input=script, text=True, check=True)
    assert (output.read_text(), output.is_symlink(), others.read_text()) == ("asked\nsaid\n", False, "mine\n")
    # One that comes between the two is not followed either.
    output.unlink()
    output.symlink_to(tmp_path / "new")
    assert subprocess.run(["sh"], input=placed, text=True, check=False, capture_output=True).returncode != 0
    assert not (tmp_path / "new").exists()
    # Nor is one in the place of their folder.
    (tmp_path / "slurm").symlink_to(tmp_path)
    script = job_script(JobOptions("r1", tmp_path / "slurm" / "authorized_keys", 60.0), ["sh"], "asked")
    assert subprocess.run(["sh"], input=script, text=True, check=False).returncode != 0
    assert (tmp_path / "authorized_keys").read_text() == "mine\n"


@pytest.mark.parametrize(
    "odd",
    [
        JobOptions("r1\nid", Path("r1.txt"), 60.0),
        JobOptions("../r1", Path("r1.txt"), 60.0),
        JobOptions("r1", Path("r1.txt"), 60.0, exclude=("n1", "n2\nid")),
        JobOptions("r1", Path("r1.txt"), 60.0, node="n1 --uid=0"),
        JobOptions("r1", Path("r1.txt"), 60.0, partition="gpus\n"),
    ],
)
def test_what_would_be_more_than_an_option_is_refused(odd: JobOptions) -> None:
    """Who shares the results folder may write what he likes into the records of nodes."""
    with pytest.raises(UserError, match="is not a valid word in an option"):
        job_script(odd, ["true"])
