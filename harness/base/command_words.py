"""The words of a command as they were typed: those from `--` on may be a program's, and are left as they are. Pure."""

from collections.abc import Sequence

PROGRAM = ".venv/bin/matrix"
YES = "--yes"


def own_words(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of a command that are its own, and those from `--` on."""
    at = words.index("--") if "--" in words else len(words)
    return tuple(words[:at]), tuple(words[at:])


def with_option(words: Sequence[str], option: str, value: str) -> tuple[str, ...]:
    """Return a command with an option, in place of the one that it has."""
    own, others = own_words(words)
    kept, skip = [], False
    for word in own:
        if not skip and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return (*kept, option, value, *others)


def agreed(words: Sequence[str], without: str = YES) -> tuple[str, ...]:
    """Return a command that asks nothing: what it would ask was agreed to. `without`: a flag that it is to lose."""
    own, others = own_words(words)
    return (*(word for word in own if word not in (YES, without)), YES, *others)
