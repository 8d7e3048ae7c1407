"""Follows Python tracebacks through the lines of a log, one process at a time."""

import re
from dataclasses import dataclass

from harness.diagnosis.lines import Line

# Prefixes that launchers, loggers and containers put before a line, and a progress bar on the same line.
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
    r"|[^\n|]{0,80}\d+%\|[^\]\n]{0,200}\[[^\]\n]{0,100}\]\s?"
    r"){1,4}"
)
_FRAME = re.compile(r'\s+File "(?P<path>[^"]+)", line \d+')
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?!vpoc[/\\])|/lib/python3\.\d+/|<frozen "
    r"|\\(?:[Pp]ython\d*|[Aa]naconda\d?|[Mm]iniconda\d?|envs\\[^\\]+)\\[Ll]ib\\"
)
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

    `ends`: the line seen last is the exception itself. `ignored`: Python continued after it. `frame` is the innermost
    frame, `own_frame` the innermost one outside of installed packages and the standard library.
    `indent`: what each line begins with.
    """

    open: bool = False
    ends: bool = False
    ignored: bool = False
    chained: bool = False
    frame: Line | None = None
    own_frame: Line | None = None
    indent: str = ""
    _in_library: bool = False
    _code: str = ""
    _own_code: str = ""
    _ignore_next: bool = False
    _chain_next: bool = False

    def sees(self, body: str, line: Line) -> bool:
        """Take the next line; return whether it is part of a traceback without being the exception."""
        self.ends = False
        if "Traceback (most recent call last)" in body:
            indent = body[: len(body) - len(body.lstrip(" |"))]
            fresh = Traceback(open=True, ignored=self._ignore_next, chained=self._chain_next, indent=indent)
            self.__dict__.update(fresh.__dict__)
            return True
        body = body.removeprefix(self.indent)
        if body.startswith(_NOT_RAISED):
            self._ignore_next = True
            return True
        if any(text in body for text in _CHAINED):
            self._chain_next = True
            return True
        if frame := _FRAME.match(body):
            self.frame, self._code = line, ""
            self._in_library = _LIBRARY.search(frame["path"]) is not None
            if not self._in_library:
                self.own_frame = line
            return True
        if self.open and (body.startswith("    ") or not body.strip()):
            if self.frame and not self._code:
                self._code = body.strip()
                if not self._in_library:
                    self._own_code = self._code
            return True
        if self.open:
            self.open, self.ends = False, True
        return False

    def was_raised(self, how: str) -> bool:
        """Return whether it ends here and was raised `how`: `importing-a-package` or `raised-by-the-program`."""
        if not self.ends or self.frame is None:
            return False
        if how == "importing-a-package":
            imports = ("import ", "from ")
            return self._in_library and (self._own_code.startswith(imports) or self._code.startswith(imports))
        return not self._in_library and self._code.startswith("raise ")
