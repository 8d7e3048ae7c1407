"""Tests of `vpoc probe`: its output for people and for programs."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from vpoc.cli import run
from vpoc.commands.probe import run_probe
from vpoc.probes.all_checks import ALL_CHECKS
from vpoc.probes.check import OUTCOMES, CheckResult

HERE = Path(__file__).parent
DOCUMENTS = HERE.parents[2] / "docs" / "reference" / "probes.md"
FAULTY_CHECKS = """
import sys
from vpoc import cli
from vpoc.commands import probe
from vpoc.probes.check import Check
names = sys.argv[1].split(",")
probe.ALL_CHECKS = tuple(Check(name, "for a test", 60, "faulty_checks:" + name) for name in names)
sys.exit(cli.run(["probe", *sys.argv[2:]]))
"""


def start(folder, names, *arguments, **pipes):
    command = [sys.executable, "-c", FAULTY_CHECKS, names, *arguments]
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.Popen(command, env=environment, start_new_session=True, **pipes)


def processes_of_checks():
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_text()
        except OSError:
            continue
        if "vpoc.probes.check_process" in line:
            found.append((int(entry.name), line))
    return found


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def child_of(pid, check):
    of_this = (child for child, line in processes_of_checks() if f'"parent": {pid}}}' in line and f":{check}" in line)
    return next(of_this, None)


@pytest.mark.slow
def test_checks_on_the_cpu():
    """Two checks run in the order of the list, and the parent process, which waits, does not import torch."""
    code = (
        "import sys; from vpoc.cli import run; "
        "code = run(['probe', '--device', 'cpu', *sys.argv[1:]]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    checks = ["--check", "matmul-fp32", "--check", "import", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *checks], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    checks = {result["check"]: result for result in document["checks"]}
    assert list(checks) == ["import", "matmul-fp32"]
    assert [result["outcome"] for result in checks.values()] == ["passed", "passed"]
    assert checks["import"]["detail"].startswith(f"torch {torch.__version__} (")
    assert (document["schema"], document["device"], document["breaks_at"]) == (2, "cpu", None)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_exits_3(capfd):
    assert run(["probe", "--device", "cuda", "--check", "device", "--check", "addmm"]) == 3
    out, err = capfd.readouterr()
    assert err == ""
    assert "sees no GPU" in out
    assert "not tried: nothing works without the check device, which broke" in out


@pytest.mark.gpu
def test_all_checks_on_a_gpu(capfd):
    assert run(["probe", "--device", "cuda"]) == 0, capfd.readouterr().out


def test_what_a_person_reads(faulty, capfd):
    checks = [faulty("passes"), faulty("exits_with_1"), faulty("sleeps", limit=3.0)]
    assert run_probe(checks, "cpu", 1.0, as_json=False) == 1
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0].split() == ["passes", "passed", lines[0].split()[2], "s", "saw", "cpu"]
    assert lines[2] == "    a library says goodbye"
    assert any("_dozing_in_a_kernel" in line for line in lines)
    assert lines[-1].startswith("This stack breaks on cpu at the check exits_with_1 (for a test): failed.")
    assert lines[-1].endswith("Also broken: sleeps.")


@pytest.mark.slow
def test_the_checks_know_what_to_leave_free(tmp_path):
    for words, told in (["--spare", "0.3"], "leaves 0.3 free"), ([], "leaves None free"):
        process = start(tmp_path, "spares", *words, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=30)
        assert told in out.decode()


def test_a_person_who_watches_sees_what_is_tried(tmp_path):
    controller, terminal = pty.openpty()
    process = start(tmp_path, "passes,skips", stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    out, _ = process.communicate(timeout=30)
    seen = os.read(controller, 10_000).decode()
    os.close(controller)
    assert process.returncode == 0
    assert "1/2 passes ..." in seen
    assert "2/2 skips ..." in seen
    assert b"..." not in out


def test_lists(capsys):
    assert run(["probe", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [check.name for check in ALL_CHECKS]
    assert run(["probe", "--list", "--json", "--check", "import", "--limit-scale", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"schema": 2, "checks": [{"check": "import", "shows": ALL_CHECKS[0].shows, "limit_s": 600.0}]}


@pytest.mark.parametrize("option", [["--check", "lunch"], ["--limit-scale", "0"], ["--device", "tpu"]])
def test_usage_errors(capsys, option):
    assert run(["probe", *option]) == 2
    assert f"Invalid value for '{option[0]}'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_signal_ends_all_and_what_is_known_is_reported(tmp_path, signum, as_json):
    process = start(
        tmp_path,
        "passes,sleeps,skips",
        *["--json"] * as_json,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child = wait_for(lambda: child_of(process.pid, "sleeps"))
    process.send_signal(signum)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + signum, f"vpoc: interrupted by {signal.Signals(signum).name}\n")
    assert not Path(f"/proc/{child}").exists()
    if as_json:
        document = json.loads(out)
        assert [result["check"] for result in document["checks"]] == ["passes"]
        assert document["interrupted_by"] == signal.Signals(signum).name
    else:
        assert [line.split()[0] for line in out.splitlines()] == ["passes"]


def test_a_check_does_not_outlive_a_probe_that_is_killed(tmp_path):
    process = start(tmp_path, "sleeps", stdout=subprocess.DEVNULL)
    child = wait_for(lambda: child_of(process.pid, "sleeps"))
    # Only a process that has written its stage has asked the kernel to end it with its parent.
    wait_for(lambda: any(path.name == "stage" for path in Path(f"/proc/{child}/cwd").iterdir()))
    process.kill()
    process.wait()
    wait_for(lambda: child not in dict(processes_of_checks()))


def test_json_is_documented(faulty, capfd):
    run_probe([faulty("raises")], "cpu", 1.0, as_json=True)
    document = json.loads(capfd.readouterr().out)
    text = DOCUMENTS.read_text()
    keys = [*document, *document["checks"][0]]
    assert [key for key in [*keys, *OUTCOMES] if f"`{key}`" not in text] == []
    assert set(document["checks"][0]) == {field.name for field in fields(CheckResult)}


def test_every_check_is_documented():
    text = DOCUMENTS.read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    documented = [(row[1].strip(" `"), row[2].strip()) for row in rows]
    assert documented[: len(ALL_CHECKS)] == [(check.name, f"{check.limit_s:g}") for check in ALL_CHECKS]
