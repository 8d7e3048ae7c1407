"""Follows Python tracebacks through the lines of a log, one process at a time."""

import re
from dataclasses import dataclass
from typing import Literal

from harness.diagnosis.lines import Line
from harness.diagnosis.patterns import kind_of

Raised = Literal[
    "importing-a-package",
    "compiling-a-kernel",
    "building-an-extension",
    "joining-the-ranks",
    "raised-by-the-program",
]
"""Where an exception came from, as the frames of its traceback show."""

# Prefixes that launchers, loggers and containers write before a line, and a progress bar on the same line.
_PREFIX = re.compile(
    r"(?:\[rank\d+\]:\s?"
    r"|rank \d+: "
    r"|\[default\d+\]:\s?"
    r"|\[\d+,\d+\]<std(?:err|out)>:\s?"
    r"|\((?:[\w.-]+ )*(?:pid|ip)=[^)]{1,60}\)\s"
    r"|(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.]+[+-]\d\d:?\d\d) [\w.-]+ [\w.@-]+(?:\[\d+\])?: "
    r"|#\d+ \d+\.\d+ |> |\d{1,4}: (?=\s*(?:Traceback|File|\w+(?:\.\w+)*(?:Error|Exception)\b))"
    r"|[EF]\d{4} [\d:.]+ +\d+ \S+\] "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\](?:\[[^\]]{1,60}\]){1,2} - "
    r"|[\w.-]{1,60}\s+\|\s"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s(?:std(?:out|err) [FP] )?"
    r"|(?:ERROR|CRITICAL|FATAL) [\d-]+ [\d:.,]+ (?:\[[^\]]{1,80}\]|\S{1,60}\]) ?"
    r"|[^\n|]{2,90}+\|(?<=\d%\|)[^\[\]\n]{0,200}+\[[^\]\n]{0,100}+\]\s?"
    r"){1,4}"
)
_HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r'(?P<indent>\s*)File "(?P<path>[^"]+)", line \d+(?:, in (?P<function>\w+))?')
_INDENT = "  "
_IMPORT = ("import ", "from ")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?!vpoc[/\\])|/lib/python3\.\d+/|<frozen "
    r"|\\(?:[Pp]ython\d*|[Aa]naconda\d?|[Mm]iniconda\d?|envs\\[^\\]+)\\[Ll]ib\\"
)
# Patterns for the innermost frame, `path function`, that show what was being done.
_DOING: dict[Raised, re.Pattern[str]] = {
    "compiling-a-kernel": re.compile(
        r"[/\\]triton[/\\](?:compiler|backends|runtime)[/\\]|[/\\]torch[/\\]_(?:inductor|dynamo)[/\\]"
    ),
    "building-an-extension": re.compile(
        r"[/\\](?:setuptools|distutils)[/\\]|[/\\]torch[/\\]utils[/\\]cpp_extension\.py"
    ),
    "joining-the-ranks": re.compile(
        r"[/\\]torch[/\\]distributed[/\\](?:rendezvous\.py"
        r"|distributed_c10d\.py (?:init_process_group|_new_process_group_helper|_store_based_barrier))"
    ),
}
_CHAINED = ("During handling of the above exception", "direct cause of the following exception")
_NOT_RAISED = ("Exception ignored in", "--- Logging error ---")


def split_prefix(text: str) -> tuple[str, str]:
    """Return the rank or pid in the prefix of a line (empty without one), and the line without its prefix."""
    found = _PREFIX.match(text)
    if not found:
        return "", text
    rank = re.search(r"(?:rank|default|pid=|,)\s?(\d+)", found[0])
    return rank[1] if rank else "", text[found.end() :]


@dataclass
class Traceback:
    """The traceback that one process is writing, or wrote last.

    `ends`: whether the last line was the exception itself.
    `ignored`: whether Python continued after the exception.
    `chained`: whether it follows another exception.
    `frame`: the innermost frame.
    `own_frame`: the innermost frame outside installed packages and the standard library.
    `lead`: the text before each of its lines, for example from a logger.
    """

    open: bool = False
    ends: bool = False
    ignored: bool = False
    chained: bool = False
    frame: Line | None = None
    own_frame: Line | None = None
    lead: str = ""
    _in_library: bool = False
    _code: str = ""
    _importing: bool = False
    _place: str = ""
    _is_flat: bool = False
    _ignore_next: bool = False
    _chain_next: bool = False

    def sees(self, body: str, line: Line) -> bool:
        """Process the next line; return whether it belongs to a traceback without being the exception."""
        self.ends = False
        if _HEAD in body:
            lead = body[: body.index(_HEAD)]
            fresh = Traceback(open=True, ignored=self._ignore_next, chained=self._chain_next, lead=lead)
            self.__dict__.update(fresh.__dict__)
            return True
        body = self.without_lead(body)
        if body.startswith(_NOT_RAISED):
            self._ignore_next = True
            return True
        if any(text in body for text in _CHAINED):
            self._chain_next = True
            return True
        if frame := _FRAME.match(body):
            self._enter(frame, line)
            return True
        if self.open and (
            body.startswith("    ") or not body.strip() or (self._is_flat and self.frame and not self._code)
        ):
            if self.frame and not self._code:
                self._code = body.strip()
                self._importing = self._importing or self._code.startswith(_IMPORT)
            return True
        if self.open:
            self.open, self.ends = False, True
        return False

    def without_lead(self, body: str) -> str:
        """Return a line without the text before each line of this traceback; the digits of that text may differ."""
        if self.lead and kind_of(body[: len(self.lead)]) == kind_of(self.lead):
            return body[len(self.lead) :]
        return body

    @property
    def is_of_packages(self) -> bool:
        """True if the traceback ends here with all frames in installed packages or the standard library."""
        return self.ends and self.frame is not None and self.own_frame is None

    def was_raised(self, how: Raised) -> bool:
        """Return whether the traceback ends here and was raised `how`."""
        if not self.ends or self.frame is None:
            return False
        if how == "importing-a-package":
            return self._in_library and self._importing
        if how == "raised-by-the-program":
            return not self._in_library and self._code.startswith("raise ")
        return _DOING[how].search(self._place) is not None

    def _enter(self, frame: re.Match[str], line: Line) -> None:
        self.frame, self._code, self._place = line, "", f"{frame['path']} {frame['function'] or ''}"
        # Frames copied into another text may have lost their indentation, and then their code has, too; `<string>` has
        # no code.
        self._is_flat = len(frame["indent"]) < len(_INDENT) and not frame["path"].startswith("<")
        self._in_library = _LIBRARY.search(frame["path"]) is not None
        if not self._in_library:
            self.own_frame, self._importing = line, False
