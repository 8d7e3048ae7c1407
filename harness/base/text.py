"""Makes text safe that others wrote: an app, a log, a record of another host. All that is shown goes through here.

A terminal takes some characters for commands: to move the cursor, to set its title, to turn the direction of writing.
"""

# The lines and columns of a text that has more than one.
LAYOUT = "\n\t"


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
    return "".join(c if c.isprintable() or c in LAYOUT else "\N{REPLACEMENT CHARACTER}" for c in text)
