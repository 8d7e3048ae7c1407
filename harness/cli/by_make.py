"""The variables of `make` that stand for options of `matrix`: for the messages to a person who typed `make`."""

import os
import re

# The Makefile sets it where it runs `matrix` for a person.
BY_MAKE = "MATRIX_BY_MAKE"
VARIABLES = {
    "--budget": "BUDGET",
    "--cell": "CELL",
    "--data": "DATA",
    "--lookback": "LOOKBACK",
    "--output": "OUTPUT",
    "--rocm": "ROCM",
    "--selection": "SELECTION",
    # Those before the command, which ARGS do not reach.
    "--base": "MATRIX_BASE",
    "--index": "MATRIX_INDEX",
    "--registry": "MATRIX_REGISTRY",
    "--root": "MATRIX_ROOT",
    "--target": "MATRIX_TARGET",
    "--wheels": "MATRIX_WHEELS",
}
OPTION = re.compile(r"--[a-z][a-z-]+")


def is_by_make() -> bool:
    """Return whether a person typed `make`, which runs this."""
    return bool(os.environ.get(BY_MAKE))


def with_make(text: str) -> str:
    """Return a message; where `make` runs this, with the variable of make for each option that it names as a remedy.

    A remedy is what comes after the first semicolon: an option to give, another value for one, or one to leave out. In
    backquotes stand whole commands, which are typed as they are.
    """
    if not is_by_make():
        return text
    remedy = re.sub("`[^`]*`", "", text.partition("; ")[2])
    named = dict.fromkeys(OPTION.findall(remedy))
    words = [f"{one} is {VARIABLES[one]}=" if one in VARIABLES else f"{one} goes into ARGS=" for one in named]
    return f"{text} (with make: {', '.join(words)})" if words else text
