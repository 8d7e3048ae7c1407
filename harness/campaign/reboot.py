"""Reboots a host whose GPU is unhealthy and continues a command after the boot, if the user asked for that.

The command is continued by a unit of the user's own systemd that runs once, so the only right needed is to reboot.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from harness.base.command_words import with_yes
from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.files.json_bounds import load_json
from harness.base.files.storage import read_regular, write_durably, write_json
from harness.base.wording import many
from harness.campaign.user_units import ask_tool, lingers, passed_on
from harness.evidence.gpus.health_log import FOLDER
from harness.evidence.records import Results
from harness.host.facts import GpuFacts
from harness.host.fingerprint import read_gpus
from harness.matrix.stacks import ExecutorName

OPTION = "--reboot-when-unhealthy"
INTERRUPTED_CAMPAIGN = "MATRIX_RESUMES"
"""The environment variable that tells the resumed command the campaign that was interrupted."""
GPUS_BEFORE = "MATRIX_GPUS_BEFORE"
"""The environment variable that tells the resumed command how many GPUs this host had before the reboot."""
GPUS_SECONDS = 300.0
_POLL_SECONDS = 1.0
MOST_REBOOTS = 3
NIGHT_SECONDS = 12 * 3600
SYSTEMD_TOOLS = ("systemctl", "loginctl", "busctl")
CAN_REBOOT = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "CanReboot")
# Restart on exit status 2: a mistake of the user, or something missing for now, such as an engine that still starts.
UNIT = """\
[Unit]
Description=matrix continues after a reboot
StartLimitIntervalSec=1h
StartLimitBurst=10

[Service]
Type=exec
WorkingDirectory={folder}
{variables}
ExecStartPre=systemctl --user disable {name}
ExecStart={command}
RestartForceExitStatus=2
RestartSec=60

[Install]
WantedBy=default.target
"""


def this_command() -> tuple[str, ...]:
    """Return the command line of this process to be run again; it asks nothing, because the user has agreed before."""
    return (str(Path(sys.argv[0]).absolute()), *with_yes(sys.argv[1:]))


def check_reboot(root: Path = Path("/")) -> None:
    """Refuse the option if the host could not be rebooted when a GPU is unhealthy. `root` can be a fake tree.

    Raises:
        UserError: without systemd, without lingering, or without the right to reboot.
    """
    missing = [tool for tool in SYSTEMD_TOOLS if shutil.which(tool) is None]
    if missing or not (root / "run/systemd/system").is_dir():
        raise UserError(f"{OPTION}: this host was not booted by systemd; leave the option out")
    if not lingers():
        raise UserError(f"{OPTION}: units of this user start only at login; run `loginctl enable-linger` first")
    ended = ask_tool("busctl", "call", *CAN_REBOOT)
    answer = (ended.stdout or ended.stderr).strip()
    if answer != 's "yes"':
        raise UserError(f"{OPTION}: this user may not reboot the host ({answer}); allow it in polkit, or leave it out")


def gpus_at_work(gpus: Iterable[GpuFacts]) -> int:
    """Return the number of GPUs of which the driver shows all: KFD lists a GPU a while before its other files exist."""
    return sum(gpu.memory_bytes is not None for gpu in gpus)


def await_gpus(root: Path, say: Callable[[str], object], seconds: float = GPUS_SECONDS) -> None:
    """After a reboot by `reboot_and_resume`, wait until the driver shows as many GPUs as before; `say` reports a lack.

    A user's unit may start before the driver has found the GPUs: the command would then make another campaign, on the
    CPU or on one GPU of two, and the night would be over. `root` can be a fake tree.

    Raises:
        UserError: when there is still no GPU after `seconds`; the unit then starts the command again.
    """
    wanted = os.environ.get(GPUS_BEFORE, "")
    if not wanted.isdecimal() or not int(wanted):
        return
    until = time.monotonic() + seconds
    while (there := gpus_at_work(read_gpus(root))) < int(wanted) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    if there < int(wanted):
        lacks = f"of the {many(int(wanted), 'GPU')} from before the reboot the driver shows {there or 'none'}"
        if not there:
            raise UserError(f"{OPTION}: {lacks}; `matrix doctor` says what to fix, then run the same command")
        say(lacks)


def reboot_and_resume(
    command: Sequence[str],
    folder: Path,
    results: Results,
    machine: str,
    executor: ExecutorName,
    campaign: str,
    gpus: int,
) -> None:
    """Let `command` run once in `folder` after the next boot, and reboot.

    The command uses `executor` again: otherwise an engine that starts late would turn containers into processes. It
    first waits for as many `gpus` as are at work now. If it cannot continue `campaign`, it says so.

    Raises:
        UserError: after three reboots in twelve hours, or when systemd refuses.
    """
    _count(results, machine)
    name = f"matrix-resume-{json_hash([str(results.folder), machine])[:8]}.service"
    told = {"MATRIX_EXECUTOR": executor, INTERRUPTED_CAMPAIGN: campaign, GPUS_BEFORE: str(gpus)}
    text = unit(name, command, folder, {**passed_on(), **told})
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    file = Path(config) / "systemd/user" / name
    # For this user alone, because the addresses of proxies and indexes may have passwords in them.
    before = os.umask(0o077)
    try:
        write_durably(file, text.encode())
    finally:
        os.umask(before)
    try:
        _must("systemctl", "--user", "daemon-reload")
        _must("systemctl", "--user", "enable", name)
        _must("systemctl", "--no-ask-password", "reboot")
    except UserError:
        ask_tool("systemctl", "--user", "disable", name)
        file.unlink(missing_ok=True)
        raise


def reboots_left(results: Results, machine: str) -> int:
    """Return how many more reboots of this machine are allowed now.

    Raises:
        UserError: when the file that counts earlier reboots is damaged.
    """
    return MOST_REBOOTS - len(_recent(_times(_count_of(results, machine))))


def unit(name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Return the text of a unit that disables itself before it starts the command."""
    lines = [f"Environment={_quoted(f'{key}={value}')}" for key, value in sorted(variables.items())]
    words = " ".join(_quoted(word).replace("$", "$$") for word in command)
    place = str(folder.absolute()).replace("%", "%%")
    return UNIT.format(folder=place, variables="\n".join(lines), name=name, command=words)


def _quoted(word: str) -> str:
    """Return a word quoted for a unit file, where quotes, backslashes and percent signs have a meaning."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{escaped}"'


def _count(results: Results, machine: str) -> None:
    """Count one more reboot of this machine, before it happens."""
    file = _count_of(results, machine)
    times = _times(file)
    if len(_recent(times)) >= MOST_REBOOTS:
        raise UserError(
            f"{OPTION}: this host was rebooted {MOST_REBOOTS} times in {NIGHT_SECONDS // 3600} hours and a GPU is "
            f"unhealthy again; look at it, then remove {file}"
        )
    write_json(file, {"schema": 2, "reboots": [*times, time.time()]})


def _count_of(results: Results, machine: str) -> Path:
    return results.folder / FOLDER / f"{machine}-reboots.json"


def _times(file: Path) -> list[float]:
    """Return the times when a machine was rebooted, in seconds since 1970."""
    try:
        return [float(at) for at in load_json(read_regular(file))["reboots"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{file}: is damaged; reboot by hand and remove it") from None


def _recent(times: Sequence[float]) -> list[float]:
    return [at for at in times if time.time() - at < NIGHT_SECONDS]


def _must(*command: str) -> None:
    ended = ask_tool(*command)
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise UserError(f"{OPTION}: `{' '.join(command)}` failed: {said[-1] if said else 'no reason given'}")
