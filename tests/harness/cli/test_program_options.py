from collections.abc import Callable
from pathlib import Path

import click

from harness.cli.program_options import COMMAND, own_program
from harness.evidence.isolations import FaultIsolation


def test_what_controls_show_of_a_program_can_be_kept_whatever_its_folder_is_called(
    make_isolation: Callable[..., FaultIsolation],
) -> None:
    with click.Context(click.Command("run")) as context:
        context.meta[COMMAND] = ("python", "train.py")
        workload = own_program({"app": Path("/srv/my 'model'")})
    assert workload
    assert make_isolation(workload=workload.name).workload == "app-my--model-"
