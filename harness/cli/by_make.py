"""The variables of `make` that stand for options of `matrix`: for the messages to a person who typed `make`."""

import os
import re
import shlex

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
# Some come with the word that belongs to them.
SUGGESTED = re.compile(r"--(?:accept|executor) \w+|--[a-z][a-z-]+")


def with_make(text: str) -> str:
    """Return a message; where `make` runs this, with how the options that it suggests are given to `make`.

    Suggested is what comes after the first semicolon; in backquotes stand whole commands, which are typed as they are.
    """
    suggested = re.sub("`[^`]*`", "", text.partition("; ")[2])
    options = dict.fromkeys(SUGGESTED.findall(suggested)) if os.environ.get(BY_MAKE) else ()
    words = [f"{VARIABLES[one]}=..." if one in VARIABLES else f"ARGS={shlex.quote(one)}" for one in options]
    return f"{text} (with make: {', '.join(words)})" if words else text
