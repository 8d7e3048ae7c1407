"""Reads pages of a package index, and files linked there, where pip and uv cannot do what is needed."""

import hashlib
import os
import re
import ssl
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from harness.base.certificates import trusted_file
from harness.base.errors import NoAnswerError, UserError
from harness.base.files.storage import cannot_be_written
from harness.base.text import one_line
from harness.base.time_limits import BackgroundCall, read_pieces_in_time
from harness.base.urls import without_credentials
from harness.matrix.stacks import Stack

SECONDS = 60
# HTTP statuses of an index that is overloaded or restarting.
TOO_MANY, SERVER_ERRORS = 429, 500
WEB = ("http", "https")
BLOCK = 1 << 20
LARGEST_PAGE = 50_000_000
# Longest address of a link, in bytes; real ones have some hundred.
LONGEST_ADDRESS = 1 << 14
# The largest torch with ROCm in it has some 6 GB.
LARGEST_FILE = 32 << 30
# Matches the address of an anchor in linear time; `HTMLParser` may take quadratic time.
_LINK = re.compile(rb"""<a\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*?\bhref\s*=\s*(?:"([^"<]*)"|'([^'<]*)')""", re.IGNORECASE)


def files_of(stack: Stack, name: str, version: str) -> Iterator[tuple[str, str]]:
    """Yield name and URL of every file, wheel or source, of a version in a stack's source.

    Raises:
        UserError: when the index does not answer.
    """
    page = stack.index if stack.origin.folder else f"{stack.index.rstrip('/')}/{name}/"
    # Not bytes, which would be copied with each block, and not text, which may take four times as much memory.
    text = bytearray()
    for block in _blocks(f"{page}index.html" if urlsplit(page).scheme == "file" else page):
        text += block
        if len(text) > LARGEST_PAGE:
            raise UserError(f"{without_credentials(page)}: no page of an index has {LARGEST_PAGE // 10**6} MB")
    for found in _LINK.finditer(text):
        try:
            address = (found[1] or found[2] or b"")[:LONGEST_ADDRESS].decode("utf-8", "replace")
            url = urlsplit(urljoin(page, unescape(address)))
        except ValueError:
            continue
        file = unquote(url.path).rpartition("/")[2]
        # A page from the network may not name a file of this host.
        if _is_of(file, name, version) and (url.scheme in WEB or url.scheme == urlsplit(page).scheme):
            yield file, url.geturl()


def download(url: str, file: Path) -> str:
    """Download a URL into a file; return its SHA-256.

    Raises:
        UserError: when nothing answers, or the file cannot be written.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with file.open("wb") as stream:
            for block in _blocks(url):
                stream.write(block)
                digest.update(block)
                size += len(block)
                if size > LARGEST_FILE:
                    raise UserError(f"{without_credentials(url)}: no wheel has more than {LARGEST_FILE >> 30} GiB")
    except OSError as error:
        raise cannot_be_written(file, error) from None
    return digest.hexdigest()


class _Redirects(HTTPRedirectHandler):
    """Follows redirects, but skips their content, which the library would read to its end."""

    def redirect_request(self, req: Any, fp: Any, *others: Any) -> Any:
        """Return the request for the address of the redirect."""
        fp.close()
        return super().redirect_request(req, fp, *others)


def _blocks(url: str) -> Iterator[bytes]:
    bundle = trusted_file(os.environ)
    context = ssl.create_default_context(cafile=str(bundle) if bundle else None)
    try:
        # The matrix only takes URLs with https, http and file.
        opener = build_opener(HTTPSHandler(context=context), _Redirects)
        # In a thread that can be left behind, because a server may send the head of its answer byte by byte for ever.
        with BackgroundCall(partial(opener.open, url, timeout=SECONDS)).result(SECONDS) as answer:
            size = 0
            for block in read_pieces_in_time(partial(answer.read1, BLOCK), SECONDS):
                size += len(block)
                yield block
            # Check the length, because Python reports no error for a connection that breaks off.
            if size < int(answer.headers["Content-Length"] or 0):
                raise OSError(f"it broke off after {size} bytes")
    except (URLError, OSError, HTTPException, ValueError) as error:
        kind = UserError if isinstance(error, ValueError) else NoAnswerError
        if isinstance(error, HTTPError):
            # Close the error, because it holds the connection.
            error.close()
            kind = NoAnswerError if error.code == TOO_MANY or error.code >= SERVER_ERRORS else UserError
        why = str(getattr(error, "reason", error)) or f"it takes more than {SECONDS} s to begin with an answer"
        raise kind(f"{without_credentials(url)} cannot be read: {one_line(why)}") from None


def _is_of(file: str, name: str, version: str) -> bool:
    try:
        parsed = parse_wheel_filename(file) if file.endswith(".whl") else parse_sdist_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return (parsed[0], str(parsed[1])) == (name, version)
