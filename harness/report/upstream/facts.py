"""The facts of a failed run for a bug report, all of them public."""

import math
import re
from collections import deque
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.text import safe_text
from harness.base.wording import many
from harness.diagnosis.rules import load_signatures
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import Explanation, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import RunCount
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import hours_in_words
from harness.host.facts import GpuFacts, HostFacts
from harness.registry.share.anonymise import scrubber_of_run
from harness.registry.share.scrub import Scrubber
from harness.registry.share.shared_files import shared_files
from harness.report.upstream.public import Public

LOG_LINES, KERNEL_LINES, STACK_LINES = 60, 40, 80
LONGEST_LINE = 400
# Environment variables that change what torch or ROCm does; other variables may identify the host.
VARIABLES = re.compile(
    r"(?:AMD|CUDA|GLOO|GPU|HIP|HIPBLASLT|HSA|KMP|MIOPEN|MKL|NCCL|OMP|PYTORCH|RCCL|ROCBLAS|ROCM|ROCR|TENSILE|TORCH|"
    r"TORCHINDUCTOR|TRITON)_\w+"
)
# Stands for a fact that a driver or a wheel does not report.
UNKNOWN = "not known"
GIB = 1 << 30


@dataclass(frozen=True)
class BugFacts:
    """The facts to report, without names and paths. `fault` is where failures of this class usually originate."""

    class_: str
    what: str
    fault: str
    on_gpu: bool
    seen: str
    often: str
    cause: str
    evidence: tuple[str, ...]
    log: str
    kernel_log: str
    stacks: str
    versions: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    variables: tuple[str, ...]
    links: tuple[str, ...]

    def version(self, name: str) -> str:
        """Return the version of that name."""
        return dict(self.versions)[name]


def require_reportable(record: Record, count: RunCount) -> None:
    """Refuse a run that shows no bug of upstream.

    Raises:
        UserError: for an injected fault, a rehearsal, a simulated host, or a run that passed or does not count.
    """
    run = record.intent.run_id
    if record.injected_fault:
        raise UserError(f"{run}: its fault was injected on purpose; that is no bug of upstream")
    if record.intent.rehearsal:
        raise UserError(f"{run}: is a rehearsal, in which no GPU computed; that is no bug of upstream")
    if record.intent.host.simulated:
        raise UserError(f"{run}: ran on a simulated host; that is no bug of upstream")
    if count.counts_as != "failed":
        why = count.why or ("it passed" if count.counts else "it does not count")
        raise UserError(f"{run}: {record.outcome}, {why}; there is no failure to report")


def bug_facts(
    results: Results,
    record: Record,
    explanation: Explanation | None,
    verdict: Verdict | None,
    confidence: float,
    scrubber: Scrubber,
) -> BugFacts:
    """Return the facts of a failed run; `verdict` is the one that counts the run, `scrubber` that of its host."""
    intent, result = record.intent, record.result or _result_of_another(results, verdict)
    folder = results.folder_of(intent.run_id)
    public = Public(scrubber_of_run(intent, folder.path, scrubber))
    files = {name: content.decode(errors="replace") for name, content in shared_files(record, folder, scrubber).items()}
    signatures = load_signatures()
    class_ = explanation.class_ if explanation else "unhealthy-gpu"
    known = signatures.classes.get(class_)
    alike = (one.link for one in signatures.signatures if one.class_ == class_ and one.link)
    links = dict.fromkeys([*([explanation.link] if explanation and explanation.link else []), *alike])
    lines = explanation.lines if explanation else ()
    host = intent.host
    versions = (
        ("torch", safe_text(result.torch.version) if result else f"{intent.torch or UNKNOWN} (declared)"),
        ("ROCm of the wheel", _rocm(intent, result)),
        ("Python", safe_text(result.python) if result else intent.python or UNKNOWN),
        *host_facts(host),
        ("run as", "container" if intent.executor == "docker" else "process"),
    )
    return BugFacts(
        class_=class_,
        what=known.what if known else "its cause is not known",
        fault=known.fault if known else "run",
        on_gpu=intent.device != "cpu",
        seen=public.text(_seen(record)),
        often=_often(verdict, confidence),
        cause=public.text(explanation.cause) if explanation else "",
        evidence=tuple(public.text(_cut(f"{line.file}:{line.line}: {line.text}")) for line in lines),
        log=public.text(_end(files.get(RunFolder.LOG, ""), LOG_LINES)),
        kernel_log=public.text(_end(files.get(RunFolder.KERNEL_LOG, ""), KERNEL_LINES)),
        stacks=public.text(_end(_stacks(files), STACK_LINES)),
        versions=tuple((name, public.text(value)) for name, value in versions),
        gpus=tuple(public.text(gpu_in_words(gpu)) for gpu in host.gpus if gpu.index in intent.gpus),
        variables=tuple(
            f"{key}={value}"
            for key, value in sorted({pair for of in intent.variables.values() for pair in of.items()})
            # A value that scrubbing changes names something private on this host: leave the variable out.
            if VARIABLES.fullmatch(key) and public.text(value) == value
        ),
        links=tuple(links),
    )


def _seen(record: Record) -> str:
    intent, options = record.intent, record.intent.options
    ends = ", ".join(f"{phase}: {how}" for phase, how in record.exit.items())
    said = f"A PyTorch training ended as `{record.outcome}`"
    said += f" ({record.diagnosis})" if record.diagnosis else ""
    said += f": {record.detail}" if record.detail else ""
    asked = ", ".join(
        f"{key.replace('_', ' ')} {options[key]}" for key in ("strategy", "batch_size", "seed") if key in options
    )
    where = many(len(intent.gpus), "GPU") if intent.device != "cpu" else "the CPU"
    return "\n\n".join(
        filter(
            None,
            (
                said,
                f"It ran on {where} ({asked})." if asked else f"It ran on {where}.",
                f"Its processes ended so: {ends}." if ends else "",
                f"The last phase was `{record.last_phase}`, after {record.seconds:.0f} s." if record.last_phase else "",
                *(f"Seen after it: {problem}." for problem in record.host_problems),
            ),
        )
    )


def _often(verdict: Verdict | None, confidence: float) -> str:
    """Say how often this stack fails on this kind of host, with the lower bound of that rate, and the hours trained."""
    if verdict is None or not verdict.runs:
        return "No rate is known: its cell has no verdict on this kind of host."
    failed = verdict.runs - verdict.passes
    least = math.floor((1 - verdict.high) * 100 + 1e-9)
    said = f"{failed} of {verdict.runs} runs with this stack and these variables failed on this kind of host"
    said += f" (more than {least} % fail, at confidence {confidence:g})" if least > 0 else ""
    totals = verdict.totals
    said += f"; {totals.started} of {totals.starts} reached the end of the first training step, and in "
    said += f"{hours_in_words(totals.hours)} of training after it {many(totals.failures, 'failure')} followed"
    named = ", ".join(f"{name} {count}" for name, count in verdict.diagnoses.items())
    return f"{said}. By diagnosis: {named}." if named else f"{said}."


def _result_of_another(results: Results, verdict: Verdict | None) -> Result | None:
    """Return the result of a passed run in the same environment, for its versions: a failed run leaves no result."""
    if verdict is None:
        return None
    for run_id in reversed(verdict.run_ids):
        if run_id not in verdict.failed_ids and (record := results.record(run_id)) and record.result:
            return record.result
    return None


def _rocm(intent: Intent, result: Result | None) -> str:
    if result and result.torch.hip:
        return safe_text(result.torch.hip)
    return f"{intent.rocm} (declared)" if intent.rocm else "none"


def host_facts(host: HostFacts) -> tuple[tuple[str, str], ...]:
    """Return the facts of a host, by name, that failures may depend on, except its GPUs."""
    parameters = ", ".join(f"{name}={value}" for name, value in host.kernel_parameters.items())
    return (
        ("operating system", host.operating_system),
        ("kernel", host.kernel),
        ("amdgpu driver", host.driver or "that of the kernel" if host.gpus else "none"),
        ("CPU", f"{host.cpu}, {host.cores} cores, {host.memory_bytes / GIB:.0f} GiB"),
        ("kernel parameters", parameters or "none that matter"),
    )


def gpu_in_words(gpu: GpuFacts) -> str:
    """Return a GPU with its memory, VBIOS and firmware, in words."""
    memory = f", {gpu.memory_bytes / GIB:.0f} GiB" if gpu.memory_bytes else ""
    firmware = ", ".join(f"{block} {version}" for block, version in sorted(gpu.firmware.items()))
    screen = ", a screen attached" if gpu.displays else ""
    told = f"{gpu.name} ({gpu.gfx}){memory}{screen}; VBIOS {gpu.vbios or UNKNOWN}; firmware {firmware or UNKNOWN}"
    return f"GPU {gpu.index}: {told}"


def _stacks(files: dict[str, str]) -> str:
    """Return the last stacks that were taken: samples from outside if there are any, else those of the ranks."""
    of_a_rank = WorkFolder.STACKS.partition("{")[0]
    by_app = [name for name in sorted(files) if name.rpartition("/")[2].startswith(of_a_rank)]
    for name in (RunFolder.PY_SPY, RunFolder.SECOND_STACKS, RunFolder.FIRST_STACKS, *by_app):
        if files.get(name, "").strip():
            return files[name]
    return ""


def _end(text: str, lines: int) -> str:
    """Return the last lines of a text, each cut to LONGEST_LINE characters."""
    return "\n".join(_cut(line) for line in deque(text.rstrip().splitlines(), lines))


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} [...]"
