"""The cells of the default selection that can run here, and the disk space they need."""

from collections.abc import Iterator

from harness.doctor.finding import Finding, command_in, note, ok, problem, warning
from harness.doctor.machine import Machine

# MB/s; below that the 20 GB of a ROCm stack take more than six minutes to unpack.
SLOW_DISK = 50


def what_runs(machine: Machine) -> Iterator[Finding]:
    """The cells of the default selection that can run here."""
    room = machine.room
    if room is None:
        return
    if room.cells:
        yield note(
            room.sentence,
            f"{room.cells} cells of the default selection can run here; `matrix plan` lists their runs",
        )
    else:
        reasons = "; ".join(room.left_out)
        fix = command_in(reasons) or ".venv/bin/matrix plan --selection all"
        yield problem(f"no cell of the default selection can run here: {reasons}", room.sentence, fix)


def disk_space(machine: Machine) -> Iterator[Finding]:
    """The free space for images or environments, compared with the needs of the default selection."""
    room = machine.room
    if room is None or room.free_gb is None:
        return
    what = f"{room.place}: {room.free_gb:.0f} GB are free, and the default selection takes {room.needed_gb:.0f} GB more"
    if room.needed_gb > room.free_gb:
        yield problem(
            what, "`matrix run` refuses a plan that does not fit", ".venv/bin/matrix plan  # with fewer cells named"
        )
    else:
        yield ok(what)


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
