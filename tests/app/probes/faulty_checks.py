"""Checks for the tests that fail in every way a check can fail; none needs torch."""

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from vpoc.errors import UserError
from vpoc.probes.site import Skipped, WrongResultError

SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def passes(site, *arguments):
    return f"saw {site.device} {' '.join(arguments)}".strip()


def spares(site):
    return f"leaves {site.spare} free"


def skips(site):
    raise Skipped("not here")


def gives_a_wrong_number(site):
    site.at("the sum on cpu")
    raise WrongResultError("3 instead of 4")


def raises(site):
    site.at("batch 8")
    raise RuntimeError("HIP error: invalid device function\nmore lines\nof advice")


def finds_no_device(site):
    raise UserError("--device cuda: no GPU", exit_code=3)


def sleeps(site):
    site.at("batch 32 on cuda:1")
    _dozing_in_a_kernel()


def sleeps_and_ignores_term(site):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _dozing_in_a_kernel()


def starts_before_it_sleeps(site, pids, own_group):
    _leave_a_child(pids, own_group)
    _dozing_in_a_kernel()


def leaves_a_child(site, pids, own_group):
    _leave_a_child(pids, own_group)
    return "fine"


def segfaults(site):
    site.at("matrix product")
    # Sent instead of reading address 0 with ctypes, because only the signal matters.
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def aborts(site):
    os.abort()


def exits_with_1(site):
    print("a library says goodbye", file=sys.stderr, flush=True)
    os._exit(1)


def exits_with_0(site):
    os._exit(0)


def passes_and_dies_at_the_end(site):
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGABRT))
    return "numbers right"


def passes_and_exits_with_7(site):
    atexit.register(lambda: os._exit(7))
    return "numbers right"


def passes_and_never_ends(site):
    atexit.register(time.sleep, 600)
    return "numbers right"


def talks(site):
    for number in range(100_000):
        print(f"line {number}", file=sys.stderr)
    raise RuntimeError("said enough")


def tells_its_surroundings(site):
    return f"{Path.cwd() == site.folder} {sorted(path.name for path in site.folder.iterdir())} {'torch' in sys.modules}"


def _dozing_in_a_kernel():
    time.sleep(600)


def _leave_a_child(pids, own_group):
    code = f"import os; {'os.setpgid(0, 0);' if own_group == 'yes' else ''} {SLEEP}"
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    Path(pids).write_text(str(child.pid))
    child.returncode = 0  # so that Popen does not warn that the child still runs
    # The child must ignore TERM before anybody sends it.
    time.sleep(0.3)
