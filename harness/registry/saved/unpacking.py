"""The digest of a layer as it is unpacked, from the pieces that gzip packed."""

import hashlib
import zlib

from harness.base.files.storage import PIECE_BYTES

# Of zlib, for what gzip packs.
GZIP = 31


class Unpacking:
    """Takes what gzip packed, piece by piece, and tells the digest of what it is unpacked; `most` bytes of that."""

    def __init__(self, most: int) -> None:
        self._unpacker, self._digest, self._left = zlib.decompressobj(GZIP), hashlib.sha256(), most

    def take(self, piece: bytes) -> None:
        """Take a piece; raises zlib.error where it is not of gzip, or there is more than there should be."""
        while piece:
            self._add(self._unpacker.decompress(piece, PIECE_BYTES))
            piece = self._unpacker.unconsumed_tail
        if self._unpacker.unused_data:
            raise zlib.error("it goes on after its end")

    def digest(self) -> str:
        """Return the digest; raises zlib.error where the end is missing."""
        self._add(self._unpacker.flush())
        if not self._unpacker.eof:
            raise zlib.error("it has no end")
        return f"sha256:{self._digest.hexdigest()}"

    def _add(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise zlib.error("it is too long")
        self._digest.update(piece)
