"""Makes text safe that others wrote: an app, a log, a record of another host. All that is shown goes through here.

A terminal takes some characters for commands: to move the cursor, to set its title, to turn the direction of writing.
"""


def one_line(text: str) -> str:
    """Return a text as one line: in place of a character that cannot be printed is its escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else ascii(c)[1:-1] for c in text)


def printable(text: str) -> str:
    r"""Return a text of any number of lines: what cannot be printed, but for `\n` and `\t`, is a replacement character.

    A text in JSON is still JSON afterwards.
    """
    if text.isprintable():
        return text
    # A page has lines of a million characters, in which nothing is to be replaced.
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def _shown(character: str) -> str:
    return character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}"


def is_text(name: str) -> bool:
    """Return whether the name of a file is text: a program may give one any bytes, which no JSON can hold."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
