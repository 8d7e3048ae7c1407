"""The errors of a Docker engine, in one line, and the progress of its transfers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from docker.errors import DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from harness.base.errors import NoAnswerError, NoEngineError, UserError

# Called with the current progress, for a person who waits.
Notify = Callable[[str], None]
GONE = "the Docker engine does not answer any more"
# Errors of talking to an engine. An APIError is among them: the engine's own refusal.
ENGINE_ERRORS = (DockerException, RequestException, HTTPError)
# An engine's words for a registry that it cannot reach, or that broke off.
NO_ANSWER = re.compile(
    r"connection (refused|reset)|broken pipe|\bEOF\b|time-?out|timed out|unreachable|no such host|no route to host"
    r"|server misbehaving|closed network connection|unexpected (HTTP )?status[^:]*: (5\d\d|429)|toomanyrequests",
    re.IGNORECASE,
)
# Docker's words for a layer that was cut off; those of 20.10 also for a layer that is packed with zstd.
NOT_UNPACKED = re.compile(r"processing tar file.*(invalid tar header|unexpected EOF)")
# Longest text of an engine that is passed on, in characters. It quotes what a registry sent, which may be megabytes.
LONGEST_SAID = 2000
# An engine's words where a service on this host does not answer it.
OF_THIS_HOST = re.compile(r"\bdial unix\b|\.sock\b", re.IGNORECASE)


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn a refusal or the silence of the engine into an error of one line.

    Raises:
        UserError: saying what was being done.
    """
    try:
        yield
    except DockerException as error:
        raise UserError(f"{doing}: {explain(error)}") from None
    except (RequestException, HTTPError):
        raise NoEngineError(f"{doing}: {GONE}; start it and give the same command again") from None


@contextmanager
def transfer_errors(doing: str) -> Iterator[None]:
    """Turn errors into one line as `engine_errors` does, while the engine talks to a registry.

    Raises:
        NoAnswerError: when the engine reports that the registry does not answer.
        UserError: saying what was being done.
    """
    with engine_errors(doing):
        try:
            yield
        except DockerException as error:
            raise _refusal(doing, explain(error)) from None


def follow_transfer(events: Iterable[Mapping[str, Any]], doing: str, notify: Notify) -> str | None:
    """Read the engine's events of a push or pull to the end; return the digest, or None where the engine gives none.

    Raises:
        UserError: when the engine reports an error.
    """
    digest = None
    sizes: dict[str, int] = {}
    for event in events:
        if error := event.get("error"):
            raise _refusal(doing, _one_line(str(error)))
        # Only some kinds of image store give the digest in `aux`.
        told = re.search(r"[Dd]igest: (sha256:[0-9a-f]{64})", str(event.get("status") or ""))
        digest = (event.get("aux") or {}).get("Digest") or (told[1] if told else digest)
        detail = event.get("progressDetail") or {}
        if "current" in detail:
            sizes[event["id"]] = detail["current"]
            notify(f"{doing}: {sum(sizes.values()) / 1e6:.0f} MB")
    return digest


def explain(error: Exception) -> str:
    """Return the engine's error message in one line."""
    return _one_line(str(getattr(error, "explanation", None) or error))


def _one_line(said: str) -> str:
    text = " ".join(said.split())
    return text if len(text) <= LONGEST_SAID else f"{text[: LONGEST_SAID - 3]}..."


def _refusal(doing: str, said: str) -> UserError:
    if NOT_UNPACKED.search(said):
        return UserError(f"{doing}: {said}; a layer is cut off, or packed with zstd, which takes Docker 23.0 or newer")
    is_away = NO_ANSWER.search(said) and not OF_THIS_HOST.search(said)
    return (NoAnswerError if is_away else UserError)(f"{doing}: {said}")
