"""Compares the requirements of the user's own program with what a stack has. Pure."""

from collections.abc import Mapping

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.matrix.programs import Program
from harness.matrix.stacks import Stack

# Packages that a stack brings, of which a program may not bring another version.
OWN = ("torch", "jax", "jaxlib")


def contradiction(program: Program, stack: Stack, pinned: Mapping[str, str] | None = None) -> str | None:
    """Return the first line of the requirements that contradicts a stack, with the reason; None if there is none.

    `pinned` are the versions of all packages of the stack, if known.
    """
    for number, line in enumerate(program.taken.requirements if program.taken else (), 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        at = f"{program.requirements}:{number}: {text}"
        try:
            wanted = Requirement(text)
            applies = wanted.marker is None or wanted.marker.evaluate({"python_version": stack.python})
        # The library finds some mistakes in a marker only when it evaluates it, and calls itself for each parenthesis.
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName, RecursionError):
            if "--hash" in text or text.endswith("\\"):
                why = "has hashes, but each stack has a lock of its own; give requirements without hashes (name==1.2)"
                return f"{at}: {why}"
            return f"{at}: is not a plain requirement; write it as name>=1.2"
        if wanted.url:
            return f"{at}: names a URL or a path; name a version instead"
        name = canonicalize_name(wanted.name)
        if not applies:
            continue
        of_stack = dict(zip(OWN, (stack.torch, stack.jax, stack.jax), strict=True))
        has = of_stack.get(name) or (pinned or {}).get(name)
        if has and not wanted.specifier.contains(has, prereleases=True):
            return f"{at}: stack {stack.name} has {name} {has}; leave the line out, or run it in another stack"
    return None
