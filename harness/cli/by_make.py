"""The variables of `make` that stand for options of `matrix`, for messages to a person who typed `make`."""

import os
import re

# The Makefile sets this variable when it runs `matrix` for a person.
BY_MAKE = "MATRIX_BY_MAKE"
VARIABLES = {
    "--budget": "BUDGET",
    "--cell": "CELL",
    "--data": "DATA",
    "--lookback": "LOOKBACK",
    "--output": "OUTPUT",
    "--rocm": "ROCM",
    "--selection": "SELECTION",
    # Options that come before the command; ARGS cannot pass them.
    "--base": "MATRIX_BASE",
    "--index": "MATRIX_INDEX",
    "--registry": "MATRIX_REGISTRY",
    "--root": "MATRIX_ROOT",
    "--target": "MATRIX_TARGET",
    "--wheels": "MATRIX_WHEELS",
}
OPTION = re.compile(r"--[a-z][a-z-]+")


def is_by_make() -> bool:
    """Return whether the user typed `make`, which started this process."""
    return bool(os.environ.get(BY_MAKE))


def with_make(text: str) -> str:
    """Return a message; under `make`, with the variable of make for each option that its remedy names.

    The remedy is the text after the first semicolon: an option to give, another value for an option, or an option to
    leave out. Text in backquotes is a whole command that is typed as it stands, so its options are not translated.
    """
    if not is_by_make():
        return text
    remedy = re.sub("`[^`]*`", "", text.partition("; ")[2])
    named = dict.fromkeys(OPTION.findall(remedy))
    words = [f"{one} is {VARIABLES[one]}=" if one in VARIABLES else f"{one} goes into ARGS=" for one in named]
    return f"{text} (with make: {', '.join(words)})" if words else text
