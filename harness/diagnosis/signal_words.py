"""How programs word that a signal ended a process: each wording for every signal."""

import re
from signal import Signals

from harness.evidence.outcome.decide import SHELL_SIGNALS

# {number}: 11; {name}: SIGSEGV; {code}: 139, as a shell reports it; {words}: segmentation fault, as Go says it.
_WORDINGS = (
    r"exits with return code = -(?:{number})\b",
    r"\bexitcode\s*:\s*-(?:{number})\b",
    r"[Ee]xit(?:ed with)? code:? (?:{code}|-(?:{number}))\b",
    r"xit status:? (?:{code}|-(?:{number}))\b",
    r"\breturncode[=: ]{{1,2}}-(?:{number})\b",
    r"status=(?:{number})/[A-Z]",
    r"Signal (?:{number}) \(SIG",
    r"(?:by|with|on|received|caught|got) signal:? (?:{number})\b",
    r"(?:[Rr]eceived|[Cc]aught|[Gg]ot) signal:? (?:{name})\b",
    r"terminated (?:with|by) signal (?:{name})\b",
    r"died with <Signals\.(?:{name})\b",
    r"was killed by (?:{name})\b",
    r"\bsignal: (?:{words})\b",
)
_WORDS = {
    "SIGABRT": "aborted",
    "SIGBUS": "bus error",
    "SIGFPE": "floating point exception",
    "SIGILL": "illegal instruction",
    "SIGKILL": "killed",
    "SIGSEGV": "segmentation fault",
    "SIGTERM": "terminated",
}


def of_signals(names: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Return the expressions for the end of a process by one of these signals.

    Raises:
        ValueError: a name is none of those whose words are known.
    """
    if unknown := set(names) - set(_WORDS):
        raise ValueError(f"give some of {', '.join(sorted(_WORDS))}, not {', '.join(sorted(unknown))}")
    if not names:
        return ()
    numbers = [int(Signals[name]) for name in names]
    said = {
        "number": "|".join(map(str, numbers)),
        "code": "|".join(str(SHELL_SIGNALS + number) for number in numbers),
        "name": "|".join(names),
        "words": "|".join(_WORDS[name] for name in names),
    }
    return tuple(re.compile(wording.format(**said)) for wording in _WORDINGS)
