"""Scans the lines of a log for known failures. Pure, and in bounded memory."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from harness.diagnosis.lines import Line
from harness.diagnosis.matcher import Hit, Matcher, OfRun, Sieve, any_process, matcher_of
from harness.diagnosis.rules import Severity, Signature, Signatures, Where, load_signatures
from harness.diagnosis.tracebacks import Traceback, split_prefix
from harness.host.gpus.kernel_resets import ADDRESS, Suspends
from harness.host.kernel_log import is_of_process, names_as_words

RECOVERY_LINES = 5
"""A recovery from a failure is logged within this number of lines after it."""
TAIL_LINES = 1000
"""This many lines after the first fatal one are still scanned, as its traceback may continue in another exception."""
MOST_PROCESSES = 256
DEVICE_ASSERT = "device-assert"
DETAIL_LINES = 12
"""The details of a page fault are logged within this number of lines after it."""
DRIVER_FAILED = "driver-failed"
ABORTED = "aborted"
REASON_LINES = 2
"""The reason why a library aborted is logged within this number of lines after the message."""
_CRASHES = frozenset({"crash", "shm"})

IN_A_LOG: tuple[Where, ...] = ("log", "build", "kernel")

_ORDER: Sequence[Severity] = ("ending", "lost-peer", "symptom")
# Newer kernels name the process of a page fault in one of the next lines.
_FAULTING = re.compile(r"amdgpu(?: [\da-f:.]+)?:\s+(?:for process|Process) (?P<name>\S+) pid (?P<pid>\d+) thread ")
_FAULTING_LINES = 2
# The output of a build, as pip shows it: an error in it is never the program's.
_BUILD_BEGINS, _BUILD_ENDS = "lines of output]", "[end of output]"
_BUILD_LINES = re.compile(r"\[(\d{1,6}) lines of output\]")
_DUMP = re.compile(r"^(?:Current thread|Stack)\b.*\(most recent call first\)")
_TRACEBACK_TEXTS = (
    "Traceback (most recent",
    '  File "',
    "During handling of the above",
    "direct cause of the following",
    "Exception ignored in",
    "--- Logging error ---",
)
STATE_TEXTS = (*_TRACEBACK_TEXTS, _BUILD_BEGINS, _BUILD_ENDS, "PM: suspend e", "PM: hibernation: hibernation e")
_DRIVERS_OF_GPUS = ("amdgpu", "kfd")
# A port reports an error of the device behind it, which it may name.
_PORT = re.compile(r"pcieport \S+")


@dataclass(frozen=True)
class ScanResult:
    """The findings in a log: the fatal line that counts, and the ends and lost peers of processes, strongest first.

    `every`: the first fatal line of each rule.
    `whole`: whether no part of the log was skipped.
    """

    fatal: Hit | None = None
    endings: tuple[Hit, ...] = ()
    every: tuple[Hit, ...] = ()
    whole: bool = True

    @property
    def without_gpus(self) -> "ScanResult":
        """The findings in a kernel log without those about a GPU, for a run that used none."""
        every = tuple(hit for hit in self.every if not _is_of_a_gpu(hit))
        endings = tuple(hit for hit in self.endings if not _is_of_a_gpu(hit))
        fatal = self.fatal if self.fatal in every else next(iter(every), None)
        return replace(self, fatal=fatal, endings=endings, every=every)


def _is_of_a_gpu(hit: Hit) -> bool:
    state = load_signatures().classes[hit.signature.class_].gpu
    # The processor and the memory of the host report errors in the words of this class, too.
    return state in ("reset", "faulted") or (state == "lost" and "[Hardware Error]" not in hit.line.text)


@cache
def sieve_of(where: tuple[Where, ...] = IN_A_LOG) -> Sieve:
    """Return the sieve for these places, made once."""
    return Sieve(load_signatures().of(*where), STATE_TEXTS)


def scan(
    lines: Iterable[Line],
    where: tuple[Where, ...] = IN_A_LOG,
    rocm: str | None = None,
    torch: str | None = None,
    of_run: OfRun = any_process,
    cards: Collection[str] = (),
) -> ScanResult:
    """Return the findings in lines, by the signatures for these places and versions.

    `cards`: the PCI addresses of the run's GPUs, or else of the host's, without the function; a line of the kernel
    about another device then says nothing of a GPU.
    """
    matcher = matcher_of(where, rocm, torch)
    state = _Scan(load_signatures(), of_run, cards, is_kernel_log=where == ("kernel",))
    for line in lines:
        state.take(line, matcher)
        if state.is_over(line):
            break
    return state.found()


@dataclass
class _Scan:
    """The state of a scan. `fatal`: in the order of lines; a later line may show that one was recovered from."""

    signatures: Signatures
    of_run: OfRun
    cards: Collection[str]
    is_kernel_log: bool
    fatal: list[Hit] = field(default_factory=list)
    endings: dict[str, Hit] = field(default_factory=dict)
    tracebacks: dict[str, Traceback] = field(default_factory=dict)
    last: dict[str, Hit] = field(default_factory=dict)
    dump_frame: Line | None = None
    dump_begins: bool = False
    build_ends: int = 0
    others_fault: int = -DETAIL_LINES
    suspends: Suspends = field(default_factory=Suspends)

    @cached_property
    def page_faults(self) -> dict[str, Signature]:
        """The signatures of page faults in the kernel log, by id."""
        classes = self.signatures.classes
        return {one.id: one for one in self.signatures.of("kernel") if classes[one.class_].gpu == "faulted"}

    def take(self, line: Line, matcher: Matcher) -> None:
        """Process the next line."""
        if self.is_kernel_log and self.suspends.restarts_gpu(line.text):
            return
        process, body = split_prefix(line.text)
        self._look_for_dump(body, line)
        if begins := _BUILD_LINES.search(body):
            # A log that was cut may lack the end of the output.
            self.build_ends = line.number + int(begins[1]) + 1
        elif _BUILD_ENDS in body:
            self.build_ends = 0
        self._forget_fault_of_another(line)
        if len(self.tracebacks) > MOST_PROCESSES:
            self.tracebacks.clear()
            self.last.clear()
        traceback = self.tracebacks.setdefault(process, Traceback())
        if traceback.sees(body, line) or (traceback.ends and traceback.ignored):
            return
        if traceback.ends:
            body = traceback.without_lead(body)
        signature = matcher.match(body, traceback, self.of_run)
        if signature is None:
            self._forget_recovered(line)
            return
        if self._says_nothing(signature, line):
            return
        hit = Hit(signature, line, (traceback.own_frame or traceback.frame) if traceback.ends else None)
        if line.number <= self.build_ends and self._is_programs(hit):
            return
        earlier = self.last.get(process)
        if (
            earlier
            and traceback.ends
            and traceback.chained
            and signature.severity in ("fatal", "ending")
            and self._passed_on(earlier, hit)
        ):
            self.fatal.remove(earlier)
        if signature.severity != "fatal":
            self.endings.setdefault(signature.id, hit)
            return
        if self.is_kernel_log and any(one.signature is signature for one in self.fatal):
            return
        self.fatal.append(hit)
        self.last[process] = hit

    def is_over(self, line: Line) -> bool:
        """Return whether further lines cannot change the findings."""
        return bool(self.fatal) and not self.is_kernel_log and line.number > self.fatal[0].line.number + TAIL_LINES

    def found(self) -> ScanResult:
        """Return the fatal line that counts, and the endings in the order of their strength."""
        order = [signature.id for signature in self.signatures.signatures]
        endings = sorted(
            (
                replace(hit, frame=self.dump_frame) if hit.signature.class_ in _CRASHES else hit
                for hit in self.endings.values()
                if not (hit.signature.id == ABORTED and self._lost_a_peer(hit))
            ),
            key=lambda hit: (_ORDER.index(hit.signature.severity), order.index(hit.signature.id)),
        )
        first_of_each: dict[str, Hit] = {}
        for hit in self.fatal:
            first_of_each.setdefault(hit.signature.id, hit)
        return ScanResult(self._decisive(), tuple(endings), tuple(first_of_each.values()))

    def _decisive(self) -> Hit | None:
        """Return the first fatal line, unless a later one is more specific."""
        if not self.fatal:
            return None
        first = self.fatal[0]
        catch_all = first.signature.catch_all
        not_started = next((hit for hit in self.fatal if hit.signature.id == DRIVER_FAILED), None)
        if not_started and self.is_kernel_log and first.signature.id in self.page_faults:
            # A driver that could not start its GPU made a page fault in memory of its own.
            return not_started
        asserted = next((hit for hit in self.fatal if hit.signature.id == DEVICE_ASSERT), None)
        if asserted and (catch_all or self.signatures.classes[first.signature.class_].gpu == "faulted"):
            # The assertion in the program's kernel is printed after the exception of the queue that it ended.
            return asserted
        if not catch_all:
            return first
        of_others = (hit for hit in self.fatal if not hit.signature.catch_all and not self._is_programs(hit))
        return next(of_others, first)

    def _is_programs(self, hit: Hit) -> bool:
        return self.signatures.classes[hit.signature.class_].fault == "program"

    def _lost_a_peer(self, aborted: Hit) -> bool:
        """Return whether a library aborted because another rank had ended."""
        lost = (hit.line.number for hit in self.endings.values() if hit.signature.severity == "lost-peer")
        return any(0 < number - aborted.line.number <= REASON_LINES for number in lost)

    def _look_for_dump(self, body: str, line: Line) -> None:
        """Keep the innermost frame of the crashed thread, from the first dump of faulthandler."""
        if self.dump_begins and self.dump_frame is None and body.lstrip().startswith('File "'):
            self.dump_frame = line
        self.dump_begins = _DUMP.match(body) is not None

    def _says_nothing(self, signature: Signature, line: Line) -> bool:
        """Return whether a line that a signature matches is about no failure, or about that of others."""
        if signature.recovered_by and signature.recovered_by in line.text:
            return True
        if self.is_kernel_log and self.signatures.classes[signature.class_].gpu and self._is_of_another_device(line):
            return True
        details = signature.severity == "symptom" and signature.id in self.page_faults
        return details and line.number <= self.others_fault + DETAIL_LINES

    def _is_of_another_device(self, line: Line) -> bool:
        """Return whether a line of the kernel names devices, ports aside, and none of them is a GPU."""
        named = ADDRESS.findall(_PORT.sub("", line.text))
        if not (named and self.cards) or any(driver in line.text for driver in _DRIVERS_OF_GPUS):
            return False
        return all(address.lower().rpartition(".")[0] not in self.cards for address in named)

    def _forget_fault_of_another(self, line: Line) -> None:
        if not self.is_kernel_log or is_of_process(line.text):
            return
        text = names_as_words(line.text)
        faults = (one.find(text) for one in self.page_faults.values())
        if any(fault and not self.of_run(fault) for fault in faults):
            self.others_fault = line.number
        found = _FAULTING.search(text)
        if found and not self.of_run(found):
            self.others_fault = line.number
            self.fatal = [
                hit
                for hit in self.fatal
                if hit.signature.id not in self.page_faults or line.number > hit.line.number + _FAULTING_LINES
            ]

    def _passed_on(self, earlier: Hit, later: Hit) -> bool:
        """Return whether an exception of the program led to one of the environment, which counts instead."""
        return earlier in self.fatal and self._is_programs(earlier) and not self._is_programs(later)

    def _forget_recovered(self, line: Line) -> None:
        self.fatal = [
            hit
            for hit in self.fatal
            if not (
                hit.signature.recovered_by
                and hit.signature.recovered_by in line.text
                and line.number <= hit.line.number + RECOVERY_LINES
                # A recovery line that is itself a failure does not cancel an earlier failure.
                and not hit.signature.find(line.text)
            )
        ]
