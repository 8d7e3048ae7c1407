"""Usage errors as one line: what is wrong, with an example or the command that shows the help."""

import re

import click

from harness.cli.by_make import VARIABLES, is_by_make

# Example values of arguments, by their name in the help.
EXAMPLES = {
    "CELL": "cpu-plain",
    "CELL|RUN": "cpu-no-sdma",
    "CELLS": "cpu-plain",
    "DIRECTORY": "TRAINING --data merged.csv",
    "--app DIRECTORY": "TRAINING --app DIR -- python train.py",
    "COMMAND": "vpoc --help",
    "FILE": "records.tar.gz",
    "FILES": "records.tar.gz",
    "HOST[/PATH]": "localhost:5000",
    "IMAGE": "vpoc:cpu-plain",
    "RUN": "latest",
    "STACK": "cpu",
    "TAG": "known-good-cpu",
    "TEXT": "'the screen was unplugged'",
    "demote TEXT": "'hangs on kernel 6.14'",
    "WHAT": "'new PSU'",
    "{bash|zsh|fish}": "bash",
    # A cell on the CPU has no GPU that could be at fault.
    "isolate CELL": "rocm6.3-torch2.9.1-plain",
}


def usage_line(error: click.UsageError) -> str:
    """Return what is wrong with a command line, and which command shows how to type it."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    command = error.ctx.command_path if error.ctx else "matrix"
    if isinstance(error, click.MissingParameter) and error.ctx:
        return f"matrix: {error.ctx.info_name}: {_lacking(error)} is missing, as in `{_example(error.ctx)}`"
    if isinstance(error, click.NoSuchOption) and error.ctx:
        name = error.option_name
        if any(name in option.opts for option in error.ctx.find_root().command.params):
            if is_by_make() and name in VARIABLES:
                return f"matrix: {name} goes before the command, which ARGS= cannot do; give {VARIABLES[name]}= to make"
            return f"matrix: {name} goes before the command: `matrix {name} ... {error.ctx.info_name}`"
        from difflib import get_close_matches  # noqa: PLC0415

        # Compare without the dashes, which make short names look alike, such as --open and --force.
        near = get_close_matches(name.lstrip("-"), [one.lstrip("-") for one in error.possibilities or ()])
        of_time = name == "--hours" and any("--budget" in option.opts for option in error.ctx.command.params)
        near = ["budget"] if of_time else near
        hint = f" (did you mean {' or '.join(f'--{one}' for one in near)}?)" if near else _without_option(error.ctx)
        if (error.ctx.info_name, name) == ("run", "--dry-run"):
            hint = "; `matrix plan` prints what it would do"
        if error.ctx.info_name == "train":
            hint += "; `matrix exec best vpoc train` has more of them"
        error = click.NoSuchOption(name, f"No such option {name!r}{hint}", ctx=error.ctx)
    said = error.format_message().rstrip(".")
    for kind, plain in (("integer", "whole number"), ("float", "number")):
        said = re.sub(rf" is not a valid {kind}( range)?$", f" is not a {plain}", said)
    return f"matrix: {said}; see `{command} --help`"


def _without_option(context: click.Context) -> str:
    """Return an example of the command where it has arguments, because one of them may have been meant."""
    has_arguments = any(isinstance(one, click.Argument) for one in context.command.params)
    return f"; arguments go without one, as in `{_example(context)}`" if has_arguments else ""


def _lacking(error: click.MissingParameter) -> str:
    if isinstance(error.param, click.Option):
        return error.param.opts[0]
    return "".join(error.param_hint or (error.param.make_metavar(error.ctx) if error.param and error.ctx else ""))


def _example(context: click.Context) -> str:
    """Return an example of the whole command with all its required arguments and options."""
    words = [context.command_path]
    for one in context.command.params:
        if one.required or isinstance(one, click.Argument):
            name = re.sub(r"^\[(.*)\]$", r"\1", one.make_metavar(context).removesuffix("..."))
            given = "--app" if context.params.get("app") else context.info_name
            example = EXAMPLES.get(f"{given} {name}", EXAMPLES.get(name, name))
            words += [*(one.opts[:1] if isinstance(one, click.Option) else ()), example]
    return " ".join(words)
