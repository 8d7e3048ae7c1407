"""The cells of `matrix run` that can run here, and the disk space they need."""

from collections.abc import Iterator

from harness.base.wording import many
from harness.doctor.checks import access
from harness.doctor.finding import Finding, command_in, note, ok, problem, warning
from harness.doctor.machine import Machine

# Slowest acceptable disk, in MB/s: below it, unpacking the 20 GB of a ROCm stack takes more than six minutes.
SLOW_DISK = 50


def what_runs(machine: Machine) -> Iterator[Finding]:
    """The cells of `matrix run` that can run here."""
    room = machine.room
    if room is None:
        return
    if room.cells:
        but = f", but for those of {many(len(room.no_room), 'stack')} without room" if room.no_room else ""
        runs = f"{many(room.cells, 'cell')} that `matrix run` takes can run here{but}; `matrix plan` lists the runs"
        yield note(room.sentence, runs)
    else:
        reasons = "; ".join(room.left_out)
        lacking = [finding.fix for finding in access.kfd(machine) if finding.fix and machine.kfd is None]
        fix = next(iter(lacking), command_in(reasons)) or ".venv/bin/matrix plan --selection all"
        yield problem(f"no cell that `matrix run` takes can run here: {reasons}", room.sentence, fix)


def disk_space(machine: Machine) -> Iterator[Finding]:
    """The free space for images or environments, and what the stacks that `matrix run` takes need, one by one."""
    room = machine.room
    if room is None or room.free_gb is None:
        return
    needed = (
        f"the stacks that `matrix run` takes and that fit, one after the other, take {room.needed_gb:.0f} GB at most"
    )
    what = f"{room.place}: {room.free_gb:.0f} GB are free"
    if room.no_room and not room.needed_gb:
        yield problem(
            f"{what}, and no stack that `matrix run` takes has room: {', '.join(room.no_room)}",
            "stacks that are not installed here yet cannot run",
            ".venv/bin/matrix clean  # lists what can be removed, and asks",
        )
    elif room.no_room:
        yield note(
            f"{what}; {needed}; no room beside those for: {', '.join(room.no_room)}",
            "`matrix run` leaves those out",
            ".venv/bin/matrix clean  # lists what can be removed, and asks",
        )
    else:
        yield ok(f"{what}; {needed}")


def results_space(machine: Machine) -> Iterator[Finding]:
    """The free space for the files of runs."""
    if machine.results_full is None:
        yield ok("there is space for the files of a run")
    else:
        yield problem(
            machine.results_full,
            "a run that fills the disk fails, and its record is lost",
            "df -h  # shows which disk is full",
        )


def disk_speed(machine: Machine) -> Iterator[Finding]:
    """The speed of a short write with fsync where images or environments are stored."""
    room = machine.room
    if room is None or room.write_speed is None:
        return
    what = f"{room.place}: a write of 32 MiB went at {room.write_speed:.0f} MB/s"
    if room.write_speed < SLOW_DISK:
        yield warning(
            what,
            "stacks of 20 GB are unpacked there, and imports from a slow disk look like hangs",
            "iostat -x 2 5  # is something else writing? else move the checkout or the engine's folder",
        )
    else:
        yield ok(what)
