"""Decides on one explanation from the signatures found in logs and the facts of a run. Pure."""

import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from harness.base.text import safe_text
from harness.diagnosis.lines import Line
from harness.diagnosis.matcher import Hit, matcher_of
from harness.diagnosis.rules import FailureClass, Fault, Signature, load_signatures
from harness.diagnosis.scan import ScanResult
from harness.environments.executors.job import SHELL_SIGNALS, Exit
from harness.evidence.files.run_files import EvidenceLine, Explanation
from harness.evidence.outcome.decide import Outcome
from harness.evidence.outcome.diagnoses import BREACH, ResultDiagnosis

UNKNOWN = "unknown"
OF_OWN_PROGRAM = "your own program crashed: "
STOPPED = "stopped"
"""The class of a log that ends in the middle of the work, without a failure."""
END_LINES = 12
"""Number of lines at the end of such a log that must not name an error."""
LONGEST_EVIDENCE = 400
OF_OUTCOMES = "see what docs/running.md#outcomes says of this diagnosis"
"""The remedy where the outcome itself is the explanation."""
OF_PRODUCTS = "correct the program, or name what it does write (--produces, or produces: of its workload)"
"""The same for a program of the user's own that did not leave what it was to write."""
ASK_THE_KERNEL = (
    "read the end of the log, then the kernel's log of that time: `journalctl -k > kernel.log`, and "
    "`matrix explain --log FILE --kernel-log kernel.log`"
)
"""The remedy for a log that names no known failure, where the kernel's log was not given."""

# Exit codes by which the app reports that there was no device, that numbers are not finite, or that they are wrong.
APP_STATUSES = (3, 4, 5)
# The classes of errors that other processes log after the kernel killed one.
_OF_A_KILL = frozenset({"oom-host", "shm", "hang-collective", "rccl", "rendezvous"})
_DECIDED = frozenset(get_args(ResultDiagnosis))
_OF_PRODUCTS = ("no-result", "incomplete-result", "model-damaged", "model-does-not-load")
# Words of errors, also of those that no signature knows.
_ERROR = re.compile(
    r"(?:Error|Exception)\b|\bTraceback\b|\b(?:ERROR|CRITICAL|FATAL)\b|asynchronously reported"
    r"|(?i:\b(?:failed|failure|fault|fatal|aborted|killed|terminated|panic|denied|not found|timed out)\b)"
)
_STAMP = re.compile(r"(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True)
class Facts:
    """The facts of a run besides its logs.

    `stack`: where the run stalled.
    `memory_limit`: the lines that say that the container met its memory limit.
    `own_program`: whether it was a program of the user's own, whose exit codes have a meaning of their own.
    """

    outcome: Outcome | None = None
    exits: Mapping[str, Exit] = field(default_factory=dict)
    stack: Hit | None = None
    memory_limit: tuple[Line, ...] = ()
    own_program: bool = False

    @property
    def words(self) -> Iterator[str]:
        """Yield how the run ended, in the words that signatures with `where: exit` match."""
        if self.outcome:
            breach = ", by a breach of the contract" * (BREACH in self.outcome.detail)
            yield f"outcome {self.outcome.name}, diagnosis {self.outcome.diagnosis}{breach}"
        if self.memory_limit:
            yield "OOMKilled"
        for phase, exit_ in self.exits.items():
            if not exit_.ok and not (self.own_program and exit_.code in APP_STATUSES):
                yield f"{'own program, ' * self.own_program}{phase}: {exit_in_words(exit_)}"


def exit_in_words(exit_: Exit) -> str:
    """Return how a process ended, with the name of the signal if a shell encoded it as a number above 128."""
    number = exit_.code - SHELL_SIGNALS
    names = {int(known): known.name for known in signal.Signals}
    return f"{exit_} ({names[number]})" if number in names else str(exit_)


def diagnose(log: ScanResult, kernel: ScanResult, facts: Facts, presets: Collection[str] | None = None) -> Explanation:
    """Explain a failure by the facts of engine and harness, or else by the first fatal line, or else by the exit code.

    Without any of these the failure is unknown. `presets`: those that may be named as remedies; None for all.
    """
    name = facts.outcome.name if facts.outcome else None
    of_gpu = next((hit for hit in kernel.every if _class_of(hit.signature).gpu != "unharmed"), None)
    killed = next((hit for hit in kernel.every if hit.signature.id == "kernel-oom"), None)
    if killed and not facts.outcome and log.fatal and log.fatal.signature.class_ not in _OF_A_KILL:
        # Without a run it is unknown whose process the kernel killed.
        killed = None
    unhealthy = _unhealthy(killed, log.fatal) or _unhealthy(of_gpu, log.fatal)
    candidates = (
        unhealthy if name == "host-fault" else None,
        _by_word(facts, fatal=True),
        unhealthy,
        *((kernel.fatal, facts.stack) if name == "hung" else ()),
        _more_specific(log),
        log.fatal,
        kernel.fatal,
        *(hit for hit in log.endings if hit.signature.severity == "ending"),
        _by_word(facts, fatal=False),
        *kernel.endings,
        *log.endings,
    )
    hit = next((candidate for candidate in candidates if candidate), None)
    if facts.outcome and facts.outcome.diagnosis in _DECIDED:
        return _decided(facts.outcome, facts)
    if hit is None:
        return unknown()
    beside = [kernel.fatal.line] if kernel.fatal and kernel.fatal is not hit else []
    shows_frame = hit.signature.severity != "fatal" or _is_programs(hit.signature)
    lines = [hit.line, *([hit.frame] if hit.frame and shows_frame else []), *beside]
    if hit.signature.where == "exit":
        lines = [*facts.memory_limit, *(found.line for found in (log.fatal, *log.endings) if found)][:2]
    return _explanation(hit.signature, lines, facts, presets)


def unknown() -> Explanation:
    """Return the explanation of a failure that no signature matches."""
    return Explanation(
        rule=None,
        class_=UNKNOWN,
        cause="no line matches a known failure",
        remedy="read the end of the log and the stacks; CONTRIBUTING.md says how a rule is added",
        link=None,
        presets=(),
        lines=(),
    )


def in_words_of_here(told: Explanation) -> Explanation:
    """Return what the record of another host tells, in the words of the rule that it names; all other text quoted."""
    rule = next((one for one in load_signatures().signatures if one.id == told.rule), None)
    cause = rule.cause if rule else unknown().cause
    if rest := told.cause.removeprefix(cause):
        quoted = safe_text(rest.removeprefix(": "), LONGEST_EVIDENCE)
        cause = quoted if rest == told.cause else f"{cause}: {quoted}"
    remedy = rule.remedy if rule else told.remedy
    if rule is None and remedy not in (OF_OUTCOMES, OF_PRODUCTS, unknown().remedy):
        remedy = safe_text(remedy, LONGEST_EVIDENCE)
    return told.model_copy(update={"cause": cause, "remedy": remedy, "link": rule.link if rule else None})


def explain_ending(ending: Sequence[Line]) -> Explanation | None:
    """Return the explanation of a log that ends in the middle of the work, or of a request; None for any other end.

    `ending`: its last lines in which nothing was found, the last one first. If one of them names an error, the log does
    not end in the middle of the work.
    """
    if not ending:
        return None
    rules = load_signatures().of("end")
    found = next((rule for rule in rules if rule.find(ending[0].text)), None)
    if found is None or (found.class_ == STOPPED and any(_ERROR.search(line.text) for line in ending)):
        return None
    return _explanation(found, [ending[0]], Facts(), None)


def _by_word(facts: Facts, *, fatal: bool) -> Hit | None:
    """Return the signature that the facts match: one that is certain (`fatal`), or one for the exit signal or code."""
    matcher = matcher_of(("exit",))
    found = (matcher.match(word) for word in facts.words)
    hits = [Hit(one, Line("", 0, "")) for one in found if one and (one.severity == "fatal") == fatal]
    return min(hits, key=lambda hit: load_signatures().signatures.index(hit.signature), default=None)


def _more_specific(log: ScanResult) -> Hit | None:
    """Return the end of a process that says more than the fatal line; None where there is none.

    A fatal line that only says that something failed gives way to any end of a process before it. A fatal line that
    fits many failures gives way to an end that names the environment or the host, wherever that is.
    """
    if log.fatal is None:
        return None
    ends = [hit for hit in log.endings if hit.signature.severity == "ending"]
    before = [hit for hit in ends if not _is_programs(hit.signature) and hit.line.number < log.fatal.line.number]
    named = [hit for hit in ends if _fault_of(hit.signature) in ("environment", "host") and not _is_an_end(hit)]
    found = [*(before if log.fatal.signature.generic else ()), *(named if log.fatal.signature.catch_all else ())]
    return next(iter(found), None)


def _is_an_end(hit: Hit) -> bool:
    """Return whether a line names the signal that ended a process, but not the cause."""
    return bool(hit.signature.signals)


def _unhealthy(kernel: Hit | None, log: Hit | None) -> Hit | None:
    """Return a failure of GPU or memory in the kernel log, if the error in the run's log is only its consequence."""
    if kernel is None:
        return None
    if kernel.signature.id == "kernel-oom":
        return kernel
    if not _class_of(kernel.signature).unhealthy:
        return None
    follows = log is None or _class_of(log.signature).of_an_unhealthy_gpu
    return kernel if follows and not (log and _is_later(kernel.line, log.line)) else None


def _is_later(one: Line, other: Line) -> bool:
    """Return whether both lines have time stamps of the same time zone, and `one` is later than `other`."""
    first, second = (_STAMP.search(line.text) for line in (one, other))
    if first is None or second is None or first["zone"] != second["zone"]:
        return False
    return first["at"].replace("T", " ") > second["at"].replace("T", " ")


def _class_of(signature: Signature) -> FailureClass:
    return load_signatures().classes[signature.class_]


def _fault_of(signature: Signature) -> Fault:
    return _class_of(signature).fault


def _is_programs(signature: Signature) -> bool:
    return _fault_of(signature) == "program"


def _decided(outcome: Outcome, facts: Facts) -> Explanation:
    of_products = facts.own_program and outcome.diagnosis in _OF_PRODUCTS
    return Explanation(
        rule=None,
        class_=str(outcome.diagnosis),
        cause=outcome.detail,
        remedy=OF_PRODUCTS if of_products else OF_OUTCOMES,
        link=None,
        presets=(),
        lines=(),
    )


def _explanation(signature: Signature, lines: list[Line], facts: Facts, presets: Collection[str] | None) -> Explanation:
    detail = f": {facts.outcome.detail}" if signature.where in ("exit", "stack") and facts.outcome else ""
    own_crash = facts.own_program and signature.class_ == "crash"
    return Explanation(
        rule=signature.id,
        class_=signature.class_,
        cause=f"{OF_OWN_PROGRAM * own_crash}{signature.cause}{detail}",
        remedy=signature.remedy,
        link=signature.link,
        presets=tuple(name for name in signature.presets if presets is None or name in presets),
        lines=tuple(_evidence(line, signature) for line in lines if line.file),
    )


def _evidence(line: Line, signature: Signature) -> EvidenceLine:
    """Return the line as evidence; of a long line the part around the match."""
    found = signature.find(line.text)
    start = max(found.start() - LONGEST_EVIDENCE // 4, 0) if found and len(line.text) > LONGEST_EVIDENCE else 0
    return EvidenceLine(file=line.file, line=line.number, text=cut(line.text, start))


def cut(text: str, start: int = 0) -> str:
    """Return a line as evidence, from `start`, with ellipses for omitted parts."""
    end = start + LONGEST_EVIDENCE
    return f"{'...' if start else ''}{text[start:end].strip()}{'...' if end < len(text) else ''}"
