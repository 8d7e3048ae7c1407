from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.slurm.job_script import JobOptions, job_script


def test_a_script_has_all_in_it_and_runs_the_command_in_place_of_its_shell() -> None:
    options = JobOptions("r1", Path("/shared/my results/r1.txt"), 61.0, "gpus", exclude=("n1", "n2"), gpus="gpu:2")
    assert job_script(options, ["python", "-m", "harness", "a b"], '{"x": "$HOME"}') == (
        "#!/bin/sh\n"
        "#SBATCH --job-name=r1\n"
        '#SBATCH --output="/shared/my results/r1.txt"\n'
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --time=2\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --partition=gpus\n"
        "#SBATCH --exclude=n1,n2\n"
        "#SBATCH --gres=gpu:2\n"
        "exec python -m harness 'a b' <<'END_OF_REQUEST'\n"
        '{"x": "$HOME"}\n'
        "END_OF_REQUEST\n"
    )


def test_a_place_that_slurm_would_change_is_refused() -> None:
    with pytest.raises(UserError, match="choose another --results"):
        job_script(JobOptions("r1", Path("/shared/100%/r1.txt"), 60.0), ["true"])


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
    with pytest.raises(UserError, match="is no word for an option"):
        job_script(odd, ["true"])
