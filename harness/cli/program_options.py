"""The options with which a command runs a program of the user's own: `--app DIR ... -- python train.py`."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from harness.base.durations import DAY
from harness.base.errors import UserError
from harness.base.validation_errors import in_plain_words
from harness.cli.goal import Duration
from harness.cli.shared import Settings
from harness.environments.python.programs import take_program
from harness.matrix.programs import STDOUT
from harness.matrix.workload_options import OF_APP
from harness.matrix.workloads import Workload

COMMAND = "harness.command_of_program"
STARTS = re.compile(r"(?:^|/)(?:python[\d.]*|torchrun|accelerate|(?:ba)?sh|[^-/][^/]*\.(?:py|sh))$")
# How the product files must load, by file name suffix.
WEIGHTS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".ckpt": "torch", ".bin": "torch"}


class WithProgram(click.Command):
    """A command that, with --app, takes the words after `--` as the command of the user's own program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the words after `--` aside before click parses the arguments."""
        given = any(word.partition("=")[0] == "--app" for word in args)
        if given and "--" not in args and not ctx.resilient_parsing and (begin := self._begin_of_command(args)):
            settings, words = ctx.find_object(Settings), (str(ctx.info_name), *args[:begin], "--", *args[begin:])
            typed = settings.invocation.command(*words) if settings else shlex.join(words)
            raise UserError(f"--app: the command of your program comes last, after `--`; type `{typed}`")
        if "--" in args:
            at = args.index("--")
            command = tuple(args[at + 1 :])
            if given:
                args, ctx.meta[COMMAND] = args[:at], command
            elif command and STARTS.search(command[0]) and not ctx.resilient_parsing:
                raise UserError(f"the command `{shlex.join(command)}` needs --app DIR, the folder of your program")
        return super().parse_args(ctx, args)

    def _begin_of_command(self, args: Sequence[str]) -> int | None:
        """Return where a command without `--` begins: the first word that starts a program and is no option's value."""
        with_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        starts = (n for n, word in enumerate(args) if STARTS.search(word) and (not n or args[n - 1] not in with_value))
        return next(starts, None)


def program_options(command: Any) -> Any:
    """Add the options that describe a program of the user's own. The command must be a `WithProgram`."""
    for option in (
        click.option(
            "--time-limit",
            type=Duration(),
            default=None,
            help="With --app: time limit of each run, e.g. 2h (default: 24h; of `train`: none).",
        ),
        click.option(
            "--produces",
            multiple=True,
            metavar="FILE",
            help="With --app: file that it must write, in its working folder; weights (.pt, .safetensors) must load.",
        ),
        click.option(
            "--progress",
            metavar="PATTERN",
            help="With --app: regular expression of its progress, with (?P<step>...).",
        ),
        click.option(
            "--stall-limit",
            type=Duration(),
            help="With --app: time without progress after which it counts as hung, e.g. 90s (default: 10m).",
        ),
        click.option(
            "--requirements",
            type=click.Path(path_type=Path),
            help="With --app: packages to add to those of the stack.",
        ),
        click.option(
            "--app",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Run a program of your own, from this folder: --app DIR -- python train.py",
        ),
    ):
        command = option(command)
    return command


def command_given() -> tuple[str, ...]:
    """Return the words after `--`, which are the command of the user's own program."""
    words: tuple[str, ...] = click.get_current_context().meta.get(COMMAND, ())
    return words


def own_program(options: Mapping[str, Any], usual_limit: float = DAY, **more: Any) -> Workload | None:
    """Return the workload that these options describe; None without --app.

    `usual_limit`: time limit in seconds if no --time-limit is given.
    `more`: further keys of the program, as in the matrix file.

    Raises:
        UserError: when the program cannot be run.
    """
    app: Path | None = options.get("app")
    if app is None:
        for name in ("requirements", "progress", "produces", "time_limit", "stall_limit"):
            if options.get(name):
                raise UserError(f"--{name.replace('_', '-')} goes with --app DIR, the folder of your program")
        return None
    if options.get("workload"):
        raise UserError("--app and --workload both say what is run; give one of them")
    command = command_given()
    if not command:
        raise UserError(f"--app {app}: the command of your program is missing; give it last: -- python train.py")
    if command[0].endswith(".py") and "/" not in command[0] and (app / command[0]).is_file():
        raise UserError(f"--app: {command[0]} is no command; type `-- python {shlex.join(command)}`")
    data, requirements = options.get("data"), options.get("requirements")
    values = {
        "command": command,
        "source": str(app.absolute()),
        "data": [str(Path(data).absolute())] if data else [],
        "requirements": str(requirements.absolute()) if requirements else None,
        "progress": options.get("progress") or STDOUT,
        "produces": [{"file": file, "loads": WEIGHTS.get(Path(file).suffix)} for file in options.get("produces") or ()],
        **more,
    }
    if options.get("stall_limit"):
        values["stall_limit"] = int(options["stall_limit"])
    try:
        # No blanks and quotes: what controls show about a workload names it in a sentence.
        name = re.sub(r"[^\w.-]", "-", f"{OF_APP}{app.absolute().name}")
        of_workload = {"name": name, "description": shlex.join(command)}
        seconds = int(options.get("time_limit") or usual_limit)
        return Workload.model_validate({**of_workload, "program": values, "time_limit": seconds})
    except ValidationError as error:
        first = error.errors()[0]
        names = [str(step) for step in first["loc"] if step != "program"] or ["program"]
        option = f"--{names.pop(0)}".replace("_", "-") if options.get(names[0]) else "--app"
        raise UserError(": ".join(filter(None, [option, ".".join(names), in_plain_words(first)]))) from None


def with_program_copy(workload: Workload) -> Workload:
    """Return the workload with a copy of its program taken; unchanged if it has no program.

    Raises:
        UserError: when a file of the program is missing.
    """
    if workload.program is None:
        return workload
    where = "--app" if workload.name.startswith(OF_APP) else f"workload {workload.name}"
    return workload.model_copy(update={"program": take_program(workload.program, where)})
