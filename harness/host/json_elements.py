"""Splits a JSON list into its elements while its bytes arrive, and keeps only a limited part of each element."""

import re
from collections.abc import Iterable, Iterator

IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
OUTSIDE = re.compile(rb'[^"{}\[\],]*+')
QUOTE, BACKSLASH = b'"\\'


def elements(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield the bytes of each element of a list; for an element of more than `most` bytes, the first `most` + 1."""
    element = bytearray()
    depth, in_string, escaped = 0, False, False
    for piece in pieces:
        at = begins = 0
        while at < len(piece):
            if escaped:
                at, escaped = at + 1, False
                continue
            at = (IN_STRING if in_string else OUTSIDE).match(piece, at).end()  # type: ignore[union-attr]
            if at == len(piece):
                break
            sign = piece[at]
            if in_string:
                # The backslash may be the last byte of a piece.
                escaped, in_string = sign == BACKSLASH, sign != QUOTE
            elif sign == QUOTE:
                in_string = True
            elif depth == 0:
                begins = at + 1
            elif depth == 1 and sign in b",]":
                element += piece[begins : min(at, begins + most + 1 - len(element))]
                if element.strip():
                    yield bytes(element)
                element, begins = bytearray(), at + 1
            depth += (sign in b"[{") - (sign in b"]}")
            at += 1
        element += piece[begins : begins + most + 1 - len(element)]
