"""Pages of a package index, read where pip and uv cannot do what is needed: the files they link, and a file itself."""

import hashlib
import os
import ssl
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from harness.base.certificates import trusted_file
from harness.base.errors import UserError
from harness.base.urls import without_credentials
from harness.matrix.cells import Stack

SECONDS = 60
BLOCK = 1 << 20
LARGEST_PAGE = 50_000_000


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
    for link in _Links(text.decode("utf-8", "replace")).found:
        file = unquote(urlsplit(link).path).rpartition("/")[2]
        if _is_of(file, name, version):
            yield file, urljoin(page, link)


def download(url: str, file: Path) -> str:
    """Write what is at a URL into a file; return its SHA-256.

    Raises:
        UserError: when nothing answers.
    """
    digest = hashlib.sha256()
    with file.open("wb") as stream:
        for block in _blocks(url):
            stream.write(block)
            digest.update(block)
    return digest.hexdigest()


def _blocks(url: str) -> Iterator[bytes]:
    bundle = trusted_file(os.environ)
    context = ssl.create_default_context(cafile=str(bundle) if bundle else None)
    try:
        # Only https, http and file: the matrix takes no other.
        with urlopen(Request(url), timeout=SECONDS, context=context) as answer:  # noqa: S310
            while block := answer.read(BLOCK):
                yield block
    except (URLError, OSError) as error:
        raise UserError(f"{without_credentials(url)} cannot be read: {getattr(error, 'reason', error)}") from None


def _is_of(file: str, name: str, version: str) -> bool:
    try:
        parsed = parse_wheel_filename(file) if file.endswith(".whl") else parse_sdist_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return (parsed[0], str(parsed[1])) == (name, version)


class _Links(HTMLParser):
    """The links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where an anchor leads."""
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]
