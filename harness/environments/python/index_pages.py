"""Pages of a package index, read where pip and uv cannot do what is needed: the files they link, and a file itself."""

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
from harness.base.time_limits import Look, coming_in_time
from harness.base.urls import without_credentials
from harness.matrix.stacks import Stack

SECONDS = 60
# Statuses of an index that is overloaded or being restarted.
TOO_MANY, SERVER_ERRORS = 429, 500
WEB = ("http", "https")
BLOCK = 1 << 20
LARGEST_PAGE = 50_000_000
# Of torch with ROCm in it the largest has some 6 GB.
LARGEST_FILE = 32 << 30
# The address of an anchor, in the time that the page is long: `HTMLParser` may take the square of it.
_LINK = re.compile(r"""<a\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*?\bhref\s*=\s*(?:"([^"<]*)"|'([^'<]*)')""", re.IGNORECASE)


def files_of(stack: Stack, name: str, version: str) -> Iterator[tuple[str, str]]:
    """Yield name and URL of every file, wheel or source, that a stack's source has of a version.

    Raises:
        UserError: when the index does not answer.
    """
    page = stack.index if stack.origin.folder else f"{stack.index.rstrip('/')}/{name}/"
    text = b""
    for block in _blocks(f"{page}index.html" if urlsplit(page).scheme == "file" else page):
        text += block
        if len(text) > LARGEST_PAGE:
            raise UserError(f"{without_credentials(page)}: no page of an index has {LARGEST_PAGE // 10**6} MB")
    for found in _LINK.finditer(text.decode("utf-8", "replace")):
        try:
            url = urlsplit(urljoin(page, unescape(found[1] or found[2] or "")))
        except ValueError:
            continue
        file = unquote(url.path).rpartition("/")[2]
        # A page of the network names no file of this host.
        if _is_of(file, name, version) and (url.scheme in WEB or url.scheme == urlsplit(page).scheme):
            yield file, url.geturl()


def download(url: str, file: Path) -> str:
    """Write what is at a URL into a file; return its SHA-256.

    Raises:
        UserError: when nothing answers, or it cannot be written.
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
    """Follows redirects without what comes with them, which the library reads to its end."""

    def redirect_request(self, req: Any, fp: Any, *others: Any) -> Any:
        """Return the request of the address that was sent to."""
        fp.close()
        return super().redirect_request(req, fp, *others)


def _blocks(url: str) -> Iterator[bytes]:
    bundle = trusted_file(os.environ)
    context = ssl.create_default_context(cafile=str(bundle) if bundle else None)
    try:
        # Only https, http and file: the matrix takes no other.
        opener = build_opener(HTTPSHandler(context=context), _Redirects)
        # In a thread, which is left behind: whoever sends a byte in time may go on with the head of an answer for ever.
        with Look(partial(opener.open, url, timeout=SECONDS)).result(SECONDS) as answer:
            size = 0
            for block in coming_in_time(partial(answer.read1, BLOCK), SECONDS):
                size += len(block)
                yield block
            # Python reads on to the end of a connection that breaks off, and says nothing.
            if size < int(answer.headers["Content-Length"] or 0):
                raise OSError(f"it broke off after {size} bytes")
    except (URLError, OSError, HTTPException, ValueError) as error:
        kind = UserError if isinstance(error, ValueError) else NoAnswerError
        if isinstance(error, HTTPError):
            # It holds the connection.
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
