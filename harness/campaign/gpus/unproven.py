"""GPUs on which no stack's probe has passed since the boot, or since the last run: a failure may not be the stack's.

Failures count against no stack until one stack's probe has passed. If the doctor finds a cause in the host, the
campaign stops; otherwise other stacks are tried first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.base.errors import UnhealthyHostError
from harness.base.wording import many
from harness.campaign.bench.bench import Bench, gpus_needed
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun
from harness.campaign.other_hosts.follow import CONTINUES
from harness.doctor.ask import docker_of
from harness.doctor.checks import access, docker, driver, system
from harness.doctor.finding import Finding
from harness.doctor.read import read_machine
from harness.evidence.files.run_files import Record
from harness.evidence.gpus.health_log import probed_gpus, proven_gpus, unhealthy_gpus
from harness.evidence.verdicts.counting import NOT_BEGUN
from harness.matrix.cells import Matrix

# Checks of the doctor whose problems keep every stack from a GPU.
CAUSES = (system.wsl, driver.amdgpu, access.kfd, access.render_nodes, docker.docker_users, docker.docker_desktop)

HostCause = Callable[[], Finding | None]


def host_cause(matrix: Matrix, bench: Bench) -> Finding | None:
    """Return the doctor's finding that keeps every stack from a GPU on this host; None if there is none.

    With a dispatcher the answer is None, because the doctor only looks at this host.
    """
    if bench.dispatcher:
        return None
    machine = read_machine(matrix, bench.root)
    if bench.engine:
        machine = replace(machine, docker=docker_of(bench.engine))
    found = (finding for check in CAUSES for finding in check(machine))
    return next((finding for finding in found if finding.level == "problem"), None)


class UnprovenGpus:
    """Puts off runs whose stack failed its probe on a GPU until another's passes, and reports each such probe once."""

    def __init__(self, bench: Bench, display: Display, cause: HostCause) -> None:
        self._bench = bench
        self._display = display
        self._cause = cause
        self._failed: set[tuple[str, int]] = set()

    def runnable(self, runs: Sequence[PendingRun]) -> list[PendingRun]:
        """Return the runs that are not put off."""
        unproven = {gpu for _, gpu in self._failed} - self._probed()
        return [one for one in runs if not any((_stack(one), gpu) in self._failed for gpu in _gpus(one) & unproven)]

    def note_record(self, pending: PendingRun, record: Record) -> bool:
        """Return whether a run was not begun because of what may not be its stack's fault, and is to be put off.

        Raises:
            UserError: when the doctor names a cause in the host, with its remedy.
        """
        if record.diagnosis != NOT_BEGUN:
            return False
        if self._bench.dispatcher:
            # The host of that run gets no further runs.
            return True
        results, host = self._bench.results, self._bench.host
        gpus = _gpus(pending) - self._probed() - unhealthy_gpus(results, host).keys()
        if not gpus:
            return False
        if not gpus <= proven_gpus(results, host) and (finding := self._cause()):
            raise UnhealthyHostError(f"{finding.what}; {finding.fix or 'see `matrix doctor`'}, then {CONTINUES}")
        self._failed |= {(_stack(pending), gpu) for gpu in gpus}
        self._display.problem(f"stack {_stack(pending)}: {record.detail}; other stacks are tried first")
        return True

    def report(self, left: Sequence[PendingRun]) -> None:
        """Report the runs that are left out because no stack's probe has passed on a GPU that they need."""
        if left:
            gpus = sorted({gpu for one in left for gpu in _gpus(one)} - self._probed())
            proven = proven_gpus(self._bench.results, self._bench.host)
            since = "the last run there" if proven.issuperset(gpus) else "the boot"
            self._display.problem(
                f"no stack's probe has passed on GPU {' and '.join(map(str, gpus))} since {since}: "
                f"{many(len(left), 'run')} there left out, which count against no stack; "
                f"check the host with `matrix doctor`, then {CONTINUES}"
            )

    def _probed(self) -> frozenset[int]:
        return probed_gpus(self._bench.results, self._bench.host)


def _stack(pending: PendingRun) -> str:
    return pending.cell.stack.name


def _gpus(pending: PendingRun) -> frozenset[int]:
    return frozenset(gpus_needed(pending.planned))
