"""The evidence of a run: everything that was seen of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.environments.executors.job import Exit
from harness.evidence.app_reports.memory import MemoryUse
from harness.evidence.files.app_files import KeptState, Result, Verification
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.outcome.diagnoses import Diagnosis, StoppedBy
from harness.matrix.programs import Product


@dataclass(frozen=True)
class PickedState:
    """The state of a training that was picked to be replayed. `sha256`: of its file, None where that is missing."""

    state: KeptState
    sha256: str | None


@dataclass(frozen=True)
class FoundProduct:
    """A file that a program of the user's own had to leave.

    `problem`: what is wrong with it; empty where nothing is. `diagnosis` goes with a problem.
    `unchecked`: why this host could not load it, which is not the run's fault.
    """

    product: Product
    sha256: str | None = None
    diagnosis: Diagnosis = "no-result"
    problem: str = ""
    unchecked: str = ""


@dataclass(frozen=True)
class ProgramEvidence:
    """The facts about a run of a program of the user's own.

    `advances`: the number of lines that reported progress.
    `step`, `total`, `loss`: the values of the last one.
    `loss_unread`: whether the program reported losses, but the last one in lines that were too many to be read.
    `printed`: whether it printed anything.
    `at_once`: whether all that it printed may be its last words, and no step.
    `survivors`: the processes that it had left running when it ended.
    `changed`: the files of its own source that it changed.
    """

    advances: int = 0
    step: int = 0
    total: int | None = None
    loss: float | None = None
    loss_unread: bool = False
    printed: bool = True
    at_once: bool = False
    survivors: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    products: tuple[FoundProduct, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Everything that was seen of a run; None where it is missing.

    Attributes:
        picked: For each model, the state from which a step was computed again.
        verification: What this host computed again.
        verification_problem: Why there is no verification.
        not_verified: What on this host ended the verification before it could find anything.
        leftovers: Files in the work folder that could not be read as they should be, in words.
        breaches: Where progress and result contradict their contract or each other, as `Accounting` finds them.
        steps_accounted: For each model, the number of steps that progress accounts for.
        no_kernels: That the environment's probe failed on a GPU where another's passed since the boot, in words.
        host_problems: What was found to be wrong with the host or a GPU after a run that did not complete.
        program: The facts about a program of the user's own, which has no result.
    """

    exits: Mapping[str, Exit]
    stopped_by: StoppedBy | None = None
    stop_detail: str = ""
    result: Result | None = None
    result_problem: str = f"there is no {WorkFolder.RESULT}"
    model_sha256: str | None = None
    earlier_sha256: tuple[str | None, ...] = ()
    picked: tuple[PickedState | None, ...] = ()
    verification: Verification | None = None
    verification_problem: str = ""
    not_verified: str | None = None
    gpus_seen: int | None = None
    memory: MemoryUse = field(default_factory=MemoryUse)
    leftovers: str = ""
    breaches: tuple[str, ...] = ()
    steps_accounted: tuple[int, ...] | None = None
    no_kernels: str | None = None
    host_problems: tuple[str, ...] = ()
    program: ProgramEvidence | None = None

    def also_left(self, *words: str) -> "Evidence":
        """Return the evidence with more leftovers, in words; empty words are ignored."""
        return replace(self, leftovers="; ".join(filter(None, [self.leftovers, *words])))
