"""Versions in our own files, as specifiers of PEP 440 such as `<2.12`."""

from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BeforeValidator


def _specifier(text: object) -> SpecifierSet:
    try:
        return SpecifierSet(str(text))
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a range of versions such as <2.12") from None


Specifier = Annotated[SpecifierSet, BeforeValidator(_specifier)]
"""The type of a field of a pydantic model, which needs `arbitrary_types_allowed`."""
