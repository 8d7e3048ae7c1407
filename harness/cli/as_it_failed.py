"""The workload and the options that repeat what a failed run did."""

from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.cli.shared import Settings
from harness.cli.workload_choice import DEFAULT_SELECTION, chosen_workload
from harness.evidence.files.run_files import Intent
from harness.matrix.stages import CHANGEABLE
from harness.matrix.workload_options import OWN_DATA
from harness.matrix.workloads import Workload
from harness.report.invocation import changed_options, has_own_data

# The options that decide which rows of the data are read, and what is accepted of them.
OF_DATA = ("rows", "as_of", "target", "accepted")


def as_it_failed(settings: Settings, failed: Intent, options: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """Return the workload of a run that failed, and the options; what was not given is as it was in that run.

    Raises:
        UserError: when the data of that run are gone.
    """
    matrix, own_data = settings.matrix, failed.workload == OWN_DATA
    lookback, strategy = failed.options.get("lookback"), failed.options.get("strategy", "single")
    # A training of the user's own data has no workload.
    name = matrix.selections[DEFAULT_SELECTION].workload if own_data else failed.workload
    had = {
        "workload": name,
        "executor": failed.executor,
        "lookback": None if lookback == matrix.workloads[name].lookback else lookback,
        "data": Path(failed.data.path) if has_own_data(failed) else None,
    }
    if had["data"] and not (options["data"] or Path(failed.data.path).is_file()):
        raise UserError(
            f"the data of {failed.run_id} are no longer at {failed.data.path}; give them with --data, or name a "
            "--workload, which has synthetic bars"
        )
    options |= {option: value for option, value in had.items() if options[option] is None}
    workload = chosen_workload(settings, DEFAULT_SELECTION, options)
    if workload.program is None and strategy != workload.strategy:
        workload = workload.model_copy(update={"strategy": strategy, "backend": None})
    # What a stage changed besides, or what the data need.
    kept = {name: failed.options[name] for name in OF_DATA if name in failed.options} if own_data else {}
    kept |= {name: value for name, value in changed_options(failed, matrix).items() if name in CHANGEABLE}
    as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return workload.model_copy(update=as_tuples), options
