import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.campaign.reboot import (
    GPUS_BEFORE,
    MOST_REBOOTS,
    await_gpus,
    check_reboot,
    reboot_and_resume,
    reboots_left,
    this_command,
    unit,
)
from harness.evidence.records import Results
from harness.host.simulated import dual_7900xt

Program = Callable[[str, str], Path]
COMMAND = ("/opt/vpoc/.venv/bin/matrix", "run", "--data", "my bars.csv", "--reboot-when-unhealthy", "--yes")


@pytest.mark.parametrize("words", [("run", "cpu-plain", "--yes"), ("run", "cpu-plain")])
def test_the_command_is_run_again_without_a_question(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bin/matrix", *words])
    assert this_command() == (str(Path.cwd() / "bin/matrix"), "run", "cpu-plain", "--yes")


@pytest.fixture
def booted(tmp_path: Path) -> Path:
    """Return a root that was booted with systemd."""
    (tmp_path / "root/run/systemd/system").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def systemd(program: Program) -> dict[str, Path]:
    """Install stand-ins for systemd's tools that allow everything; return the file with the calls of each."""
    answers = {"systemctl": "exit 0", "loginctl": "echo yes", "busctl": "echo 's \"yes\"'"}
    return {name: program(name, script) for name, script in answers.items()}


def test_a_host_that_allows_it_is_not_refused(booted: Path, systemd: dict[str, Path]) -> None:
    check_reboot(booted)
    assert systemd["loginctl"].read_text() == f"show-user {os.getuid()} --property=Linger --value\n"
    assert systemd["busctl"].read_text().endswith("org.freedesktop.login1.Manager CanReboot\n")
    assert not systemd["systemctl"].exists()


@pytest.mark.parametrize("gone", ["systemctl", "loginctl", "busctl"])
def test_without_systemd_it_is_refused(gone: str, booted: Path, tmp_path: Path, systemd: dict[str, Path]) -> None:
    (tmp_path / "bin" / gone).unlink()
    with pytest.raises(UserError, match="--reboot-when-unhealthy: this host was not booted by systemd"):
        check_reboot(booted)


@pytest.mark.usefixtures("systemd")
def test_in_a_container_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not booted by systemd"):
        check_reboot(tmp_path / "no-root")


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize("answer", ["echo no", "echo 'Failed to get user: not logged in' >&2; exit 1", "exit 0"])
def test_without_lingering_it_is_refused(answer: str, booted: Path, program: Program) -> None:
    program("loginctl", answer)
    with pytest.raises(UserError, match="run `loginctl enable-linger` first"):
        check_reboot(booted)


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize("answer", ["echo 's \"challenge\"'", "echo 's \"no\"'", "echo 'Access denied' >&2; exit 1"])
def test_without_the_right_to_reboot_it_is_refused(answer: str, booted: Path, program: Program) -> None:
    program("busctl", answer)
    with pytest.raises(UserError, match="this user may not reboot the host"):
        check_reboot(booted)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the user's systemd units."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/systemd/user"


def reboot(results: Results) -> None:
    reboot_and_resume(COMMAND, results.folder.parent, results, "m", "docker", "c1", 2)


def test_the_command_goes_on_once_after_the_boot(config: Path, tmp_path: Path, systemd: dict[str, Path]) -> None:
    reboot(Results(tmp_path / "results"))
    (file,) = config.iterdir()
    name = file.name
    assert systemd["systemctl"].read_text().splitlines() == [
        "--user daemon-reload",
        f"--user enable {name}",
        "--no-ask-password reboot",
    ]
    text = file.read_text()
    assert f"ExecStartPre=systemctl --user disable {name}\n" in text
    assert (
        'ExecStart="/opt/vpoc/.venv/bin/matrix" "run" "--data" "my bars.csv" "--reboot-when-unhealthy" "--yes"\n'
        in text
    )
    assert f"WorkingDirectory={tmp_path}\n" in text
    # Otherwise the command would run cells as processes if the engine is not up yet after the boot.
    assert 'Environment="MATRIX_EXECUTOR=docker"\n' in text
    assert 'Environment="MATRIX_RESUMES=c1"\n' in text
    # Otherwise it would go on without GPUs that the driver has not found yet.
    assert 'Environment="MATRIX_GPUS_BEFORE=2"\n' in text
    assert "RestartForceExitStatus=2\n" in text


@pytest.mark.usefixtures("systemd")
def test_the_command_finds_after_the_boot_what_the_caller_had_elsewhere(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"UV_FIND_LINKS": "/srv/uv", "PIP_INDEX_URL": "https://me:pass%40@index", "XDG_STATE_HOME": "/srv/state"}
    places |= {"https_proxy": "http://me:pass@proxy:3128", "NO_PROXY": "localhost", "SSL_CERT_FILE": "/srv/ca.pem"}
    for name, place in {**places, "OTHER": "x"}.items():
        monkeypatch.setenv(name, place)
    reboot(Results(tmp_path / "results"))
    (file,) = config.iterdir()
    lines = file.read_text().splitlines()
    assert [one for one in places.items() if 'Environment="{}={}"'.format(*one).replace("%", "%%") not in lines] == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "there are passwords in it"
    assert 'Environment="OTHER=x"' not in lines


def test_at_most_three_times_a_night(
    config: Path, tmp_path: Path, systemd: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "results")
    for _ in range(3):
        reboot(results)
    systemd["systemctl"].unlink()
    with pytest.raises(UserError, match="rebooted 3 times in 12 hours"):
        reboot(results)
    assert not systemd["systemctl"].exists()
    # Another machine that shares the folder has its own count, and after twelve hours a new count begins.
    reboot_and_resume(COMMAND, tmp_path, results, "another", "docker", "c1", 2)
    later = time.time() + 12.1 * 3600
    monkeypatch.setattr("time.time", lambda: later)
    reboot(results)


def test_a_count_that_cannot_be_read_stops_it(config: Path, tmp_path: Path, systemd: dict[str, Path]) -> None:
    results = Results(tmp_path / "results")
    reboot(results)
    for damaged in ("{", "[" * 100_000):
        (results.folder / "health/m-reboots.json").write_text(damaged)
        with pytest.raises(UserError, match="is damaged"):
            reboot(results)


@pytest.mark.parametrize("refused", ["daemon-reload", "enable", "reboot"])
def test_what_systemd_refuses_leaves_no_unit_behind(
    refused: str, config: Path, tmp_path: Path, program: Program
) -> None:
    calls = program("systemctl", f'case "$*" in *{refused}*) echo "Access denied" >&2; exit 1;; esac')
    with pytest.raises(UserError, match=f"{refused}.*` failed: Access denied"):
        reboot(Results(tmp_path / "results"))
    assert list(config.iterdir()) == []
    assert "--user disable matrix-resume-" in calls.read_text().splitlines()[-1]


@pytest.mark.usefixtures("systemd", "config")
def test_what_is_left_of_the_reboots_is_reported_before_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "results")
    assert reboots_left(results, "m") == MOST_REBOOTS
    reboot(results)
    assert reboots_left(results, "m") == MOST_REBOOTS - 1
    assert reboots_left(results, "another") == MOST_REBOOTS
    later = time.time() + 12.1 * 3600
    monkeypatch.setattr("time.time", lambda: later)
    assert reboots_left(results, "m") == MOST_REBOOTS


def test_what_means_something_to_systemd_is_escaped(tmp_path: Path) -> None:
    text = unit(
        "r.service", ("/bin/echo", 'q"x', "100%", "$HOME", "back\\slash", "two\nlines"), tmp_path, {"A": '%n $B "'}
    )
    assert r'ExecStart="/bin/echo" "q\"x" "100%%" "$$HOME" "back\\slash" "two\nlines"' in text.splitlines()
    # In `Environment=`, systemd does not expand a dollar sign.
    assert r'Environment="A=%%n $B \""' in text.splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_the_unit_as_it_is_meant(tmp_path: Path) -> None:
    words = ("/bin/echo", "a b", 'q"x', "100%", "$HOME", "back\\slash", "two\nlines")
    name = "matrix-resume-1.service"
    file = tmp_path / name
    file.write_text(unit(name, words, tmp_path / "a place %", {"PATH": "/usr/bin:/bin", "MATRIX_A": '%n $HOME "'}))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(file)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of KFD's nodes of a host with two GPUs (1 and 2), which was rebooted and does not wait."""
    monkeypatch.setenv(GPUS_BEFORE, "2")
    monkeypatch.setattr("harness.campaign.reboot._POLL_SECONDS", 0.0)
    dual_7900xt(tmp_path)
    return tmp_path / "sys/class/kfd/kfd/topology/nodes"


def test_after_the_reboot_it_waits_until_the_driver_shows_all_gpus(
    topology: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = topology.rename(tmp_path / "hidden")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            hidden.rename(topology)

    monkeypatch.setattr("time.sleep", sleep)
    said: list[str] = []
    await_gpus(tmp_path, said.append)
    assert (len(looks), said) == (3, [])


def test_after_the_reboot_it_waits_until_the_driver_shows_all_of_each_gpu(
    topology: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its memory and firmware it would be a host of another kind, with another campaign."""
    (render_node,) = re.findall(r"drm_render_minor (\d+)", (topology / "2/properties").read_text())
    card = tmp_path / f"sys/class/drm/renderD{render_node}"
    hidden = card.rename(tmp_path / "hidden")
    monkeypatch.setattr("time.sleep", lambda _: hidden.rename(card))
    said: list[str] = []
    await_gpus(tmp_path, said.append)
    assert card.exists()
    assert said == []


def test_a_gpu_that_the_reboot_did_not_bring_back_is_reported(topology: Path, tmp_path: Path) -> None:
    (topology / "2").rename(tmp_path / "lost")
    said: list[str] = []
    await_gpus(tmp_path, said.append, seconds=0.0)
    assert said == ["of the 2 GPUs from before the reboot the driver shows 1"]


def test_without_any_gpu_it_does_not_go_on_with_the_cpu(
    topology: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology.rename(tmp_path / "hidden")
    with pytest.raises(UserError, match=r"before the reboot the driver shows none; .*same command"):
        await_gpus(tmp_path, print, seconds=0.0)
    monkeypatch.delenv(GPUS_BEFORE)
    await_gpus(tmp_path, print, seconds=0.0)
