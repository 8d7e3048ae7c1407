"""The evidence of a run: all that was seen of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.environments.executors.job import Exit
from harness.evidence.files.app_files import KeptState, Result, Verification
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.outcome.diagnoses import Diagnosis, StoppedBy
from harness.evidence.reported.memory import MemoryUse
from harness.matrix.programs import Product


@dataclass(frozen=True)
class PickedState:
    """The state of a training that was picked to be replayed; `sha256` of its file, None where that is not there."""

    state: KeptState
    sha256: str | None


@dataclass(frozen=True)
class FoundProduct:
    """A file that a program of the user's own had to leave: `problem` says what is wrong with it, empty where nothing.

    `diagnosis` goes with a problem. `unchecked`: why it could not be loaded here, which is no fault of the run.
    """

    product: Product
    sha256: str | None = None
    diagnosis: Diagnosis = "no-result"
    problem: str = ""
    unchecked: str = ""


@dataclass(frozen=True)
class ProgramEvidence:
    """The facts of a program of the user's own. `advances`: how many lines told its progress, the last one this much.

    `survivors`: what it had left running when it ended; `changed`: files of its source that it changed.
    `loss_unread`: it told losses, the last one in lines that were too many to be read.
    """

    advances: int = 0
    step: int = 0
    total: int | None = None
    loss: float | None = None
    loss_unread: bool = False
    printed: bool = True
    survivors: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    products: tuple[FoundProduct, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Everything seen of a run. None means it is not there.

    `leftovers`: what in the work folder is no file that could be read, in words.
    `picked`: of each model, the state from which a step was computed again; `verification`: what this host computed, or
    `verification_problem` why nothing. `not_verified`: what of this host ended that before it could find anything.
    `breaches`: where progress and result contradict their contract or each other, as `Accounting` finds them, and
    `steps_accounted`: the steps of each model that progress accounts for.
    `no_kernels`: the environment's probe failed on a GPU where another's passed since the boot, in words.
    `program`: of a program of the user's own, in place of a result.
    `host_problems`: what was found to be wrong with the host or a GPU after a run that did not complete.
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
        """Return the evidence with more that the run left; of empty words nothing."""
        return replace(self, leftovers="; ".join(filter(None, [self.leftovers, *words])))
