"""The script of a job, which contains everything that it needs, because Spur passes no arguments to scripts. Pure."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.evidence.records import Results

JOBS_FOLDER = "slurm"
REQUEST_END = "END_OF_REQUEST"
WORD = re.compile(r"[A-Za-z0-9_.,:+=-]+")
LONGEST_SHOWN = 60


@dataclass(frozen=True)
class JobOptions:
    """The options of a job.

    `seconds`: the time limit of the job.
    `node`: the node that it must run on; None for any.
    `exclude`: nodes that it must not run on.
    `gpus`: the generic resources to request; None for none.
    """

    name: str
    output: Path
    seconds: float
    partition: str | None = None
    node: str | None = None
    exclude: tuple[str, ...] = ()
    exclusive: bool = True
    gpus: str | None = None


def job_output(results: Results, name: str) -> Path:
    """Return the file that receives the output of a job."""
    return results.folder / JOBS_FOLDER / f"{name}.txt"


def job_script(options: JobOptions, command: Sequence[str], request: str = "") -> str:
    """Return the script of a job: its options, and the command, which reads the request from standard input.

    Raises:
        UserError: when a value cannot be written as an option.
    """
    minutes = max(1, -(-int(options.seconds) // 60))
    words = (options.name, options.partition, options.node, *options.exclude, options.gpus)
    if odd := next((word for word in words if word is not None and not WORD.fullmatch(word)), None):
        # Such a value could end the option or the line, and the rest would be read as another option.
        raise UserError(
            f"{odd[:LONGEST_SHOWN]!r}: is not a valid word in an option of sbatch; correct hosts: in the matrix file"
        )
    asked = [
        f"--job-name={options.name}",
        "--output=/dev/null",
        "--nodes=1",
        "--ntasks=1",
        "--no-requeue",
        f"--time={minutes}",
        *(["--exclusive"] if options.exclusive else []),
        *([f"--partition={options.partition}"] if options.partition else []),
        *([f"--nodelist={options.node}"] if options.node else []),
        *([f"--exclude={','.join(options.exclude)}"] if options.exclude else []),
        *([f"--gres={options.gpus}"] if options.gpus else []),
    ]
    lines = ["#!/bin/sh", *(f"#SBATCH {one}" for one in asked)]
    output, folder = shlex.quote(str(options.output)), shlex.quote(str(options.output.parent))
    # Slurm would follow a link that others planted in a shared results folder, so the shell creates a new file itself.
    lines += [f"[ ! -h {folder} ] || exit", f"rm -f -- {output} || exit", "set -C", f"exec >{output} 2>&1"]
    # Replace the shell, so that signals which Slurm sends to the job reach the command.
    start = f"exec {shlex.join(command)}"
    if request:
        return "\n".join([*lines, f"{start} <<'{REQUEST_END}'", request, REQUEST_END, ""])
    return "\n".join([*lines, f"{start} </dev/null", ""])
