"""A connection to a registry over HTTP, with the docker command's credentials and no others."""

import ipaddress
import re
import time
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import docker.auth
from requests import Request, Response, Session
from requests.exceptions import RequestException
from requests.utils import parse_dict_header
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from harness.base.errors import NoAnswerError, UserError
from harness.base.files.json_bounds import json_object
from harness.base.text import safe_text
from harness.base.time_limits import LEAST_SPEED, BackgroundCall, read_pieces_in_time
from harness.host.engine import reach_engine
from harness.host.engine_errors import engine_errors

OK, CREATED, ACCEPTED, PARTIAL, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 201, 202, 206, 401, 403, 404
# HTTP statuses of a registry that is overloaded or restarting.
TOO_MANY, SERVER_ERRORS = 429, range(500, 600)
# Gets an answer whose headers have arrived, and returns the answer, with its content read if needed.
AnswerReader = Callable[[Response], Response]
SECONDS = 30
# Seconds below the lowest speed after which reading fails.
SLOW_SECONDS = 60.0
# Seconds for a whole answer, including redirects. The largest answer, a history of promotions, has some megabytes after
# years.
ANSWER_SECONDS = 60.0
# Seconds for all answers together, because one image may need many requests in a row.
ALL_SECONDS = 600.0
MOST_REDIRECTS = 5
# Redirects that keep the method and the content of a request.
SAME_AGAIN = (307, 308)
LARGEST_ANSWER = 16 << 20
# Most bytes of a refusal that are looked at for its message.
MOST_SAID = 4096
# Longest text of a registry that a message quotes, in characters.
LONGEST_SAID = 200
PIECE = 1 << 20
TOKEN = re.compile(r"[!-~]+")
# Docker Hub: its name in the docker command, and the host name of its registry.
HUB, HUB_HOST = "docker.io", "registry-1.docker.io"
# The folder where the engine, too, looks for the certificate of a registry's own authority.
CERTIFICATES = Path("/etc/docker/certs.d")


class _Session(Session):
    """A session that uses the environment's proxies and authorities, but not the credentials in ~/.netrc."""

    def __init__(self) -> None:
        super().__init__()
        # Set `auth`, or else the library uses ~/.netrc.
        self.auth = lambda request: request

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Keep an authority that was set, although the library prefers REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE.

        Like the engine, use no proxy for loopback, which is another host for a proxy.
        """
        merged = super().merge_environment_settings(url, proxies, stream, verify, cert)
        if _is_loopback(parse_url(url).host or ""):
            merged["proxies"] = {}
        return {**merged, "verify": self.verify} if self.verify is not True else merged

    def get_redirect_target(self, resp: Response) -> None:
        """Follow no redirect, because the library reads the whole content of one, even if it does not follow."""


class Connection:
    """A connection to one registry, such as `ghcr.io`."""

    def __init__(self, host: str) -> None:
        self._login = host
        self._host = HUB_HOST if host == HUB else host
        self._scheme = "http" if _speaks_plain_http(host) else "https"
        self._session = _Session()
        authority = CERTIFICATES / self._host / "ca.crt"
        if authority.is_file():
            self._session.verify = str(authority)
        self._authorization: dict[str, str] = {}
        self._seconds_left = ALL_SECONDS

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        data: bytes = b"",
        also: tuple[int, ...] = (),
    ) -> Response:
        """Send a request; `also` are statuses besides 200 that count as success.

        Raises:
            NoAnswerError: when the registry does not answer, or reports that it is out of order.
            UserError: when the registry refuses, or answers with another status.
        """
        with self._answering():
            return self._asked(method, path, headers or {}, data, also, self._read)

    @contextmanager
    def reading(self, path: str, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Read content of any length from an offset on; yield the offset where the registry begins, and the pieces.

        Raises:
            NoAnswerError: as in `ask`, and when the connection is cut.
            UserError: as in `ask`.
        """

        def begin(answer: Response) -> Response:
            return answer if answer.status_code in (OK, PARTIAL) else self._read(answer)

        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}
        with self._answering(), self._asked("GET", path, headers, b"", (PARTIAL,), begin) as answer:
            begun = offset if answer.status_code == PARTIAL else 0
            if begun and not re.match(rf"bytes {begun}-", answer.headers.get("Content-Range", "")):
                raise NoAnswerError(f"registry {self._host} does not continue at byte {begun}")
            yield begun, self._pieces(answer)

    def _pieces(self, answer: Response) -> Iterator[bytes]:
        """Yield the pieces of an answer as they arrive."""
        try:
            yield from read_pieces_in_time(partial(answer.raw.read1, PIECE, decode_content=False), SLOW_SECONDS)
        except TimeoutError:
            raise NoAnswerError(f"registry {self._host} sends fewer than {LEAST_SPEED} bytes a second") from None

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (RequestException, HTTPError) as error:
            raise NoAnswerError(
                f"registry {self._host} does not answer: {_reason(error)}; check its name and the network"
            ) from None

    def _asked(
        self, method: str, path: str, headers: Mapping[str, str], data: bytes, also: tuple[int, ...], read: AnswerReader
    ) -> Response:
        """Return the answer to a request, after making sure that its status is expected."""
        url = urljoin(f"{self._scheme}://{self._host}/v2/", path)
        response = self._send(method, url, headers, data, read)
        if response.status_code == UNAUTHORIZED:
            # Authorize again, because a token is valid for one kind of request: one for reading does not allow writing.
            self._authorization = self._authorize(response.headers.get("WWW-Authenticate", ""), path)
            response = self._send(method, url, headers, data, read)
        status = response.status_code
        if status in (OK, *also):
            return response
        if status in (UNAUTHORIZED, FORBIDDEN):
            raise self._refused(path)
        # Not the library's text: it decodes with any charset that the registry names, and some fail or take hours.
        said = " ".join(response.content[:MOST_SAID].decode(errors="replace").split())
        kind = NoAnswerError if status == TOO_MANY or status in SERVER_ERRORS else UserError
        raise kind(f"registry {self._host} says {status} to {method} {path}: {safe_text(said, LONGEST_SAID)}")

    def _send(self, method: str, url: str, headers: Mapping[str, str], data: bytes, read: AnswerReader) -> Response:
        # Send the credentials to this host only, because the Location of an upload may be on another host.
        mine = (f"{self._scheme}://{self._host}/", self._authorization)
        return self._in_time(partial(self._follow, method, url, headers, data, mine, read))

    def _in_time(self, follow: Callable[[], Response]) -> Response:
        """Return an answer, within the time limits."""
        seconds = min(ANSWER_SECONDS, self._seconds_left)
        began = time.monotonic()
        try:
            if seconds <= 0:
                raise TimeoutError
            # In a thread that can be left behind, because a server may send the head of its answer byte by byte for
            # ever.
            return BackgroundCall(follow).result(seconds)
        except TimeoutError:
            what = "an answer" if seconds == ANSWER_SECONDS else "its answers"
            limit = ANSWER_SECONDS if seconds == ANSWER_SECONDS else ALL_SECONDS
            raise NoAnswerError(f"registry {self._host} takes more than {limit:.0f} s for {what}") from None
        except RequestException:
            raise
        except OSError as error:
            # A file of certificates that the environment names is not there.
            raise UserError(f"registry {self._host} cannot be asked: {error}") from None
        finally:
            self._seconds_left -= time.monotonic() - began

    def _follow(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes,
        credentials: tuple[str, Mapping[str, str]],
        read: AnswerReader,
    ) -> Response:
        """Return an answer after following redirects; `credentials` only go to URLs that begin with their first part.

        Raises:
            UserError: when the answer is too large, or is redirected too often, or to a place that may not be asked or
            asks for credentials.
        """
        place, secrets = credentials
        for _ in range(MOST_REDIRECTS + 1):
            if not _may_be_asked(url, place):
                raise UserError(
                    f"registry {self._host} redirects to {safe_text(url, LONGEST_SAID)}, which is another host without "
                    "https; nothing was sent there, do not trust it"
                )
            mine = {**headers, **secrets} if url.startswith(place) else dict(headers)
            answer = read(self._session.request(method, url, headers=mine, data=data, timeout=SECONDS, stream=True))
            location = answer.headers.get("Location", "")
            if not answer.is_redirect or (method not in ("GET", "HEAD") and answer.status_code not in SAME_AGAIN):
                if answer.status_code == UNAUTHORIZED and not url.startswith(place):
                    # It would name where to send the registry's credentials.
                    raise UserError(
                        f"registry {self._host} redirects to {safe_text(url, LONGEST_SAID)}, which asks for "
                        "credentials; none were sent there, do not trust it"
                    )
                return answer
            try:
                url = urljoin(url, location)
            except ValueError:
                url = location
        raise UserError(f"registry {self._host} redirects more than {MOST_REDIRECTS} times")

    def _read(self, answer: Response) -> Response:
        """Return an answer with its content, whose size the server decides.

        Raises:
            UserError: when the content is too large.
        """
        content = bytearray()
        # Do not use the library's own pieces, because it waits until a piece is full.
        with answer:
            while part := answer.raw.read1(PIECE, decode_content=True):
                content += part
                if len(content) > LARGEST_ANSWER:
                    raise UserError(f"registry {self._host} answers with more than {LARGEST_ANSWER >> 20} MiB")
        # Set the attribute in which the library keeps the content.
        answer._content = bytes(content)
        return answer

    def _authorize(self, challenge: str, path: str) -> dict[str, str]:
        """Return the Authorization header for a registry's challenge, according to the distribution specification."""
        kind, _, parameters = challenge.partition(" ")
        asked = parse_dict_header(parameters)
        user, secret = _credentials(self._login)
        basic = {"Authorization": f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"} if user else {}
        if kind.lower() == "basic" and basic:
            return basic
        if kind.lower() != "bearer":
            raise self._refused(path)
        realm = str(asked.pop("realm", ""))
        if not _may_be_asked(realm, f"{self._scheme}://{self._host}/"):
            raise UserError(
                f"registry {self._host} asks for credentials to be sent to {realm} without encryption; nothing was sent"
            )
        url = Request("GET", realm, params=asked).prepare().url or ""
        answer = self._in_time(partial(self._follow, "GET", url, {}, b"", (urljoin(url, "/"), basic), self._read))
        given = json_object(answer.content) if answer.status_code == OK else {}
        token = given.get("token") or given.get("access_token")
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            raise self._refused(path)
        return {"Authorization": f"Bearer {token}"}

    def _refused(self, path: str) -> UserError:
        return UserError(f"registry {self._host} refuses {path}; log in with `docker login {self._login}`")


def _may_be_asked(url: str, place: str) -> bool:
    """Return whether a URL that a registry names leads to the registry itself, or anywhere by HTTPS.

    Services that speak plain HTTP may be meant for this host only, so nobody who controls a registry's answers may
    reach them through us.
    """
    try:
        # Parse both as the library that sends the request does.
        there, here = parse_url(url), parse_url(place)
    except ValueError:
        return False
    if there.scheme == "http":
        return here.scheme == "http" and (there.host, there.port or 80) == (here.host, here.port or 80)
    return there.scheme == "https"


def _credentials(host: str) -> tuple[str, str]:
    """Return user and secret that the docker command has for a registry, from its file or helper; empty if it has none.

    Raises:
        UserError: when the helper fails, or only the docker command can use this kind of credentials.
    """
    # Ignore the warning, because the library reports a missing helper by an error as well.
    with engine_errors(f"reading docker's credentials for {host}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stored = docker.auth.load_config().resolve_authconfig(host) or {}
    stored = {name.lower(): value for name, value in stored.items()}
    if stored.get("identitytoken"):
        raise UserError(f"docker has an identity token for {host}; `docker login {host}` with an access token instead")
    return str(stored.get("username") or ""), str(stored.get("password") or "")


def _speaks_plain_http(host: str) -> bool:
    """Return whether a registry is on loopback, or configured as insecure in the engine."""
    name = host.rpartition(":")[0] or host
    if _is_loopback(name):
        return True
    settings: dict[str, Any] = {}
    with suppress(UserError):
        engine = reach_engine()
        settings = (engine.facts.get("RegistryConfig") or {}) if engine else {}
    listed = (settings.get("IndexConfigs") or {}).get(host)
    if listed:
        return not listed.get("Secure", True)
    networks = (ipaddress.ip_network(network) for network in settings.get("InsecureRegistryCIDRs") or ())
    address = _address(name)
    return address is not None and any(address in network for network in networks)


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is named by; None for any other name."""
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    """Return the system's message in an error, such as `Connection refused`."""
    text = re.sub(r"\[SSL: \w+\] | \(_ssl\.c:\d+\)", "", str(error)).split("Caused by ")[-1].rstrip("')\"")
    text = re.split(r": |\(['\"]|, ['\"]", text)[-1]
    return text + ")" * (text.count("(") - text.count(")"))
