"""A client of a Docker engine that limits the size of its answers.

The author of an image writes most of what an engine reports about the image and its containers, which is requested
every second and kept in records: labels and variables of any size.
"""

import base64
import logging
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound
from requests import PreparedRequest, Response

from harness.base.files.json_bounds import load_json
from harness.host.json_elements import elements

_log = logging.getLogger(__name__)
PIECE = 1 << 16
# Largest answer, in bytes: lists of some thousand images or containers, each with its labels. In memory it may take
# fifteen times as much.
LARGEST_ANSWER = 8 << 20
# Largest description of an image, in bytes. That of an image built here has some twenty kilobytes; an engine repeats it
# for a container.
LARGEST_IMAGE = 1 << 20
# An engine writes the id before labels and variables. In a label each quotation mark has a backslash before it.
ID = re.compile(rb'"Id":"((?:sha256:)?[0-9a-f]{64})"')


NOT_FOUND = 404
STAT_HEADER = "X-Docker-Container-Path-Stat"
# Bits of Go's `os.FileMode` for a folder, link, device, pipe, socket, character device and other irregular files.
FOLDER_MODE, LINK_MODE = 1 << 31, 1 << 27
KINDS = FOLDER_MODE | LINK_MODE | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19


class TooLargeAnswerError(DockerException):  # type: ignore[misc]
    """Raised for an answer of an engine that is larger than any regular one."""


class Api(docker.APIClient):  # type: ignore[misc]
    """The library's client with bounded answers; streamed answers have no bound.

    An image with a description that is too large is left out of lists, as are its containers, and a warning names it
    once.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._named: set[str] = set()

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        """Send a request and read its answer.

        Raises:
            TooLargeAnswerError: when the answer is too large.
        """
        if kwargs.pop("stream", False):
            return super().send(request, stream=True, **kwargs)  # type: ignore[no-any-return]
        with super().send(request, stream=True, **kwargs) as answer:
            content = bytearray()
            pieces = answer.iter_content(PIECE)
            first = next(pieces, b"")
            told = chain((first,), pieces)
            for piece in self._sound(told) if first.startswith(b"[") else told:
                content += piece
                if len(content) > LARGEST_ANSWER:
                    raise TooLargeAnswerError(
                        f"the engine's answer has more than {LARGEST_ANSWER} bytes: {_why_so_large(content)}"
                    )
        answer._content = bytes(content)
        return answer  # type: ignore[no-any-return]

    def inspect_image(self, image: str) -> Any:
        """Return the engine's description of an image.

        Raises:
            ImageNotFound: when there is none of this name.
            TooLargeAnswerError: when it is too large for an image.
        """
        if not all(part.strip(".") for part in image.split("/")):
            # It would be the path of another question to the engine, such as for all images.
            raise ImageNotFound(f"no such image: {image!r} is no name of one")
        answer = self._get(self._url("/images/{0}/json", image))
        if len(answer.content) > LARGEST_IMAGE:
            raise TooLargeAnswerError(
                f"image {image} has labels or variables of more than {LARGEST_IMAGE} bytes, which none has that is "
                f"built here; `docker image rm {image}`"
            )
        return self._result(answer, True)

    def seen_in(self, container: str, path: str) -> tuple[int, int] | None:
        """Return the kind and size of a file at a path of a container; None where there is none.

        The kind has the bits of Go's `os.FileMode`, 0 for a regular file. The file is not opened, and no link is
        followed.
        """
        asked = {"params": {"path": path}}
        answer = self.head(self._url("/containers/{0}/archive", container), **self._set_request_timeout(asked))
        if answer.status_code == NOT_FOUND:
            return None
        self._raise_for_status(answer)
        told = load_json(base64.b64decode(answer.headers[STAT_HEADER]))
        return int(told["mode"]) & KINDS, int(told["size"])

    def _sound(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield a JSON list again, without elements that are larger than the description of any regular image."""
        before = b"["
        for element in elements(pieces, LARGEST_IMAGE):
            if len(element) <= LARGEST_IMAGE:
                yield before + element
                before = b","
            elif (found := ID.search(element)) and (name := found[1].decode()) not in self._named:
                self._named.add(name)
                why = f"it has more than {LARGEST_IMAGE} bytes of labels and tags; `{_removal(name)}`"
                _log.warning("matrix: %s is skipped: %s", name, why)
        yield b"[]" if before == b"[" else b"]"


class Client(docker.DockerClient):  # type: ignore[misc]
    """The library's client, using `Api`."""

    def __init__(self, **options: Any) -> None:
        self.api = Api(**options)


def _why_so_large(beginning: bytes | bytearray) -> str:
    """Return what makes an answer so long, from its beginning, and the command that removes it."""
    ids = list(ID.finditer(beginning))
    ends = [*(one.start() for one in ids[1:]), len(beginning)]
    size, name = max(((end - one.end(), one[1].decode()) for one, end in zip(ids, ends, strict=False)), default=(0, ""))
    if size > len(beginning) / 2:
        return f"{name} has labels or variables of that size; `{_removal(name)}`"
    return "there are too many images or containers; `docker image prune` and `docker container prune` remove some"


def _removal(name: str) -> str:
    return f"docker {'image rm' if name.startswith('sha256:') else 'rm --force'} {name}"
