"""Edits the words of a command as typed; words from `--` on may be another program's and are not changed. Pure."""

import re
from collections.abc import Sequence

PROGRAM = ".venv/bin/matrix"
YES = "--yes"
# `matrix` directly after a backquote, where a sentence begins to name a command.
QUOTED = "(?<=`)matrix"


def own_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a command's own words, and the words from `--` on."""
    at = words.index("--") if "--" in words else len(words)
    return tuple(words[:at]), tuple(words[at:])


def with_option(words: Sequence[str], option: str, value: str) -> tuple[str, ...]:
    """Return a command with an option, which replaces the option that it has."""
    own, others = own_words(words)
    kept, skip = [], False
    for word in own:
        if not skip and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return (*kept, option, value, *others)


def with_yes(words: Sequence[str], without: str = YES) -> tuple[str, ...]:
    """Return a command that asks no question, because the user has agreed already. `without`: a flag to leave out."""
    own, others = own_words(words)
    return (*(word for word in own if word not in (YES, without)), YES, *others)


def with_typed_commands(text: str, program: str, typed: str, written: str = QUOTED) -> str:
    """Return a text in whose commands `matrix` is replaced by `typed`: the program, and the global options.

    A command that has global options already, as a stored one may, gets only the program.

    `written`: a regular expression that finds `matrix` in the text.
    """
    return re.sub(rf"{written}(?=\s+(-)?)", lambda found: program if found[1] else typed, text)
