"""Versions in our own files: the specifiers of PEP 440, such as `<2.12`."""

from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BeforeValidator


def _specifier(text: object) -> SpecifierSet:
    try:
        return SpecifierSet(str(text))
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from None


Specifier = Annotated[SpecifierSet, BeforeValidator(_specifier)]
"""A field of a pydantic model; it needs `arbitrary_types_allowed`."""
