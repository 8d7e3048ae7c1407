"""Makes text of others safe to show: of an app, a log, a record of another host. All shown text goes through here.

A terminal takes some characters for commands: to move the cursor, to set its title, to change the writing direction.
"""

import re
from pathlib import PurePath

# Longest name that is shown, in characters.
LONGEST_SHOWN = 80
# Longest sentence of the app's that a message quotes, in characters.
LONGEST_QUOTE = 400
PLAIN = re.compile(r"[\w.,=+@/<>-]*")


def one_line(text: str) -> str:
    """Return a text as one line, with escape sequences for characters that cannot be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else ascii(c)[1:-1] for c in text)


def printable(text: str) -> str:
    r"""Return a text of any number of lines, with U+FFFD for each character that cannot be printed but `\n` and `\t`.

    A text in JSON stays valid JSON.
    """
    if text.isprintable():
        return text
    # A page has lines of a million characters, in most of which nothing has to be replaced.
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def _shown(character: str) -> str:
    return character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}"


def is_text(name: str) -> bool:
    """Return whether the name of a file is valid text: a program may use any bytes, which JSON cannot represent."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def safe_text(name: str | PurePath, most: int = LONGEST_SHOWN) -> str:
    """Return a name as text that is safe to print: at most `most` characters, without cursor movements and line ends.

    It is quoted if it could be taken for our own words.
    """
    text = one_line(str(name))
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    if PLAIN.fullmatch(text):
        return text
    mark = '"' if "'" in text and '"' not in text else "'"
    escaped = text.replace(mark, f"\\{mark}")
    return f"{mark}{escaped}{mark}"
