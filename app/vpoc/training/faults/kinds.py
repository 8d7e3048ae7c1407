"""The kinds of faults that can be injected, and the form of their names. Standard library only.

`KIND@STEP` or `KIND@STEP/RANK`: the optimizer step (from 1) and the rank (from 0; by default 0).
"""

import re
from dataclasses import dataclass

FAULT_KINDS = {
    "kill": "the rank is killed, as by the kernel",
    "sleep": "the rank hangs between two steps",
    "hang-forward": "the rank hangs in the forward pass",
    "hang-backward": "the rank hangs in the backward pass",
    "hang-collective": "the rank does not join the exchange with the others",
    "hang-loader": "the process that makes batches hangs: a loader worker where there are some",
    "hold-gil": "a call that never returns keeps the interpreter's lock",
    "segv": "the rank reads memory that is not its own: SIGSEGV",
    "abort": "a library aborts: SIGABRT",
    "bus-error": "a mapped file has lost its pages: SIGBUS",
    "exit-0": "the rank ends with exit status 0 in the middle of its work",
    "eat-memory": "the rank takes memory until it is killed",
    "child-eats-memory": "a process that the rank has started takes memory until it is killed",
    "fill-disk": "the disk of the output folder is full until the rank ends",
    "oom": "the device has no memory left",
    "blas-alloc-failed": "torch says HIPBLAS_STATUS_ALLOC_FAILED",
    "blas-not-initialized": "torch says HIPBLAS_STATUS_NOT_INITIALIZED",
    "blas-internal-error": "torch says HIPBLAS_STATUS_INTERNAL_ERROR",
    "blas-not-supported": "torch says HIPBLAS_STATUS_NOT_SUPPORTED",
    "illegal-access": "torch says that a kernel read memory that is not its own",
    "no-kernel-image": "torch says that it has no kernel for this GPU",
    "import-error": "a library of the runtime is not there",
    "nan": "a number of the batch is not a number",
    "flip-gradient": "a bit of the gradient flips, before it is used",
    "flip-peer-buffer": "a bit of what ranks pass to each other flips, so that one of them trains on other numbers",
    "slow": "healthy: this step and all that follow take 2 s more",
    "slow-checkpoint": "healthy: the next checkpoint takes 60 s",
    "torn-progress": "healthy: half a line and rubbish get into the progress file",
    "clock-back": "healthy: the clock of the progress lines is set back by an hour",
    "flood-log": "healthy: 200,000 lines are printed",
}
"""The effect of each kind in its step. After one that is called healthy the training completes; its result names it."""
BETWEEN_RANKS = ("flip-peer-buffer", "hang-collective")
IN_RUN_FOLDER = ("torn-progress", "clock-back")


@dataclass(frozen=True)
class InjectedFault:
    """A fault of a kind in one step of one rank. A run with one is never evidence: its result names it."""

    kind: str
    step: int
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "InjectedFault":
        """Return the inverse of str; ValueError when `text` names no fault."""
        match = re.fullmatch(r"([a-z0-9-]+)@([1-9]\d{0,8})(?:/(\d{1,4}))?", text)
        if not match or match[1] not in FAULT_KINDS:
            raise ValueError(f"{text!r} is not KIND@STEP or KIND@STEP/RANK with a KIND of {', '.join(FAULT_KINDS)}")
        return cls(match[1], int(match[2]), int(match[3] or 0))
