"""The operating system with its limits and permissions."""

import math
import shlex
from collections.abc import Iterator

from packaging.version import Version

from harness.base.paths import CHECKOUT
from harness.base.wording import listed
from harness.doctor.finding import Finding, note, ok, problem, warning
from harness.doctor.machine import Machine

GIB = 1 << 30
MIB = 1 << 20
# PyTorch's wheels are manylinux_2_28; since 2.41 glibc refuses libraries that ask for an executable stack.
OLDEST_GLIBC, STRICT_GLIBC = Version("2.28"), Version("2.41")
# Enough shared memory, in bytes. Containers get 8 GiB; Docker's default of 64 MiB is known to kill loader workers.
ENOUGH_SHARED_MEMORY = GIB
SHARED_MEMORY = "/dev/shm"  # noqa: S108
SEE_WSL = "See docs/doctor.md#wsl2"
MOST_NAMED = 3
PROBE_BY_HAND = "HSA_ENABLE_DXG_DETECTION=1 PYTHONPATH=app INTERPRETER -m vpoc probe --device cuda"


def foreign_system(name: str) -> Finding | None:
    """Return why an operating system (a name of `platform.system`) cannot be examined; None for Linux."""
    if name == "Linux":
        return None
    why = "the matrix runs on Linux: ROCm's wheels, /dev/kfd, /sys and containers with GPUs are Linux's"
    if name == "Windows":
        return Finding(
            "problem",
            "this is native Windows",
            f"{why}; torch for Windows is another build, whose faults say nothing about these stacks. WSL2 can use "
            f"one GPU. {SEE_WSL}",
            "wsl --install",
            "operating-system",
        )
    return Finding("problem", f"this is {name}", why, "ssh YOUR-LINUX-HOST", "operating-system")


def wsl(machine: Machine) -> Iterator[Finding]:
    """Windows' Linux subsystem: /dev/dxg, a single GPU."""
    found = machine.wsl
    if found is None:
        return
    if found.version == 1:
        yield problem(
            "this is the first Windows Subsystem for Linux",
            f"it has no Linux kernel, so no GPU and no containers. {SEE_WSL}",
            "wsl.exe --set-version $WSL_DISTRO_NAME 2",
        )
    elif not found.gpu:
        yield warning(
            "this is WSL2 without /dev/dxg",
            f"Windows lends it no GPU: an older WSL, or a driver without support for it. {SEE_WSL}",
            "wsl.exe --update",
        )
    else:
        missing = "" if found.library else ", but /usr/lib/wsl/lib/libdxcore.so is missing"
        yield warning(
            f"this is WSL2: the GPU is reached through /dev/dxg{missing}",
            "there is no /dev/kfd, so GPUs cannot be identified or watched from outside, and no run on them counts as "
            f"completed; only one GPU can be used; an interpreter set up for WSL can be probed by hand. {SEE_WSL}",
            "wsl.exe --update" if missing else PROBE_BY_HAND,
        )


def _of_processes(machine: Machine, what: str, why: str, fix: str) -> Finding:
    """Return a warning about cells that run as processes; a note where an engine runs them in containers."""
    in_containers = machine.engine is not None and machine.engine.maps_users is None
    return note(what, why) if in_containers else warning(what, why, fix)


def glibc(machine: Machine) -> Iterator[Finding]:
    """The C library that cells use when they run as processes."""
    if machine.glibc is None:
        yield note("no glibc was found", "PyTorch's wheels need glibc 2.28; without it, cells cannot run as processes")
        return
    version = Version(machine.glibc)
    if version < OLDEST_GLIBC:
        yield _of_processes(
            machine,
            f"glibc {version} is older than {OLDEST_GLIBC}",
            "PyTorch's wheels do not install or load; containers bring their own",
            "MATRIX_EXECUTOR=docker .venv/bin/matrix plan",
        )
    elif version >= STRICT_GLIBC and machine.training:
        yield _of_processes(
            machine,
            f"glibc {version} refuses libraries that ask for an executable stack",
            "those of older ROCm wheels do (`cannot enable executable stack as shared object requires`); it is "
            "unknown which ones exactly. Containers bring glibc 2.36",
            "MATRIX_EXECUTOR=docker .venv/bin/matrix plan",
        )
    else:
        yield ok(f"glibc {version}")


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """The size of /dev/shm, through which loader workers pass batches."""
    size = machine.shared_memory
    if size is None:
        fix = f"sudo mount -t tmpfs shm {SHARED_MEMORY}"
        why = "loader workers of cells that run as processes fail without it; containers are given 8 GiB"
        yield _of_processes(machine, f"{SHARED_MEMORY} is not a tmpfs", why, fix)
    elif size < ENOUGH_SHARED_MEMORY:
        yield _of_processes(
            machine,
            f"{SHARED_MEMORY} holds {size / MIB:.0f} MiB",
            "loader workers of cells that run as processes die with `Bus error`; containers are given 8 GiB",
            f"sudo mount -o remount,size=8g {SHARED_MEMORY}",
        )
    else:
        yield ok(f"{SHARED_MEMORY} holds {size / GIB:.0f} GiB")


def locked_memory(machine: Machine) -> Iterator[Finding]:
    """The limit of locked memory, which processes inherit."""
    limit = machine.locked_memory
    if limit is None or not machine.training:
        return
    if math.isinf(limit):
        yield ok("the limit of locked memory is unlimited")
    else:
        yield note(
            f"the limit of locked memory is {limit / MIB:.0f} MiB",
            "containers are given no limit, processes inherit this one; buffers for transfers are locked memory",
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf  # then log in again",
        )


def checkout(machine: Machine) -> Iterator[Finding]:
    """Who may change the code of this checkout and its environments."""
    found = machine.changeable_by_others
    if not found:
        yield ok("no other user may change this checkout and its environments")
    else:
        # Not all of the checkout: results in it may be shared on purpose.
        place, within = shlex.quote(str(CHECKOUT)), shlex.join(one for one in found if one != str(CHECKOUT))
        fixes = [f"sudo chmod go-w {place}"] if str(CHECKOUT) in found else []
        fixes += [f"sudo chown -R --reference={place} {within} && sudo chmod -R go-w {within}"] if within else []
        yield note(
            f"other users may change {listed([*found[:MOST_NAMED], *(['more'] if found[MOST_NAMED:] else [])])}",
            "commands and cells run the code there as this user; leave it so only if you trust these users",
            " && ".join(fixes),
        )


def written_folders(machine: Machine) -> Iterator[Finding]:
    """Permission to write where environments, wheels and data are kept."""
    found = machine.unwritable
    if not found:
        yield ok("this user may write where environments, wheels and data are kept")
    else:
        yield problem(
            f"this user may not write to {listed(found)}",
            "environments, wheels and prepared data are kept there, so nothing can be installed or built",
            f"sudo chown -R $USER {shlex.join(found)}  # or use a checkout of your own",
        )


def ptrace(machine: Machine) -> Iterator[Finding]:
    """Permission to read the stacks of a hung run from outside."""
    scope = machine.ptrace_scope
    if not scope or machine.caller.uid == 0:
        yield ok("the stacks of a process can be read from outside")
    else:
        yield note(
            f"kernel.yama.ptrace_scope is {scope}: stacks cannot be read from outside",
            "of a hung run only the stacks that it writes itself are recorded; those of py-spy are missing",
            "sudo sysctl kernel.yama.ptrace_scope=0" if scope < 3 else None,  # noqa: PLR2004  3 holds until the next boot
        )


def kernel_log(machine: Machine) -> Iterator[Finding]:
    """Permission to read the kernel's messages."""
    if not machine.dmesg_restrict or machine.reads_journal:
        yield ok("the kernel's messages can be read")
    else:
        yield note(
            "the kernel's messages cannot be read (kernel.dmesg_restrict is 1)",
            "resets and faults of a GPU are often reported nowhere else, so such a failure may stay unexplained",
            "sudo usermod -aG systemd-journal $USER  # then log in again",
        )
