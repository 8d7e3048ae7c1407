"""A connection to a registry over HTTP, with the credentials that the docker command keeps, and no others."""

import ipaddress
import warnings
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import docker.auth
from requests import PreparedRequest, Response, Session
from requests.exceptions import RequestException
from requests.utils import parse_dict_header

from harness.base.errors import UserError
from harness.host.engine import engine_errors, reach_engine

OK, CREATED, ACCEPTED, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 201, 202, 401, 403, 404
SECONDS = 30
# What the docker command calls it, and where it really is.
HUB, HUB_HOST = "docker.io", "registry-1.docker.io"
# Where the engine, too, looks for the certificate of a registry's own authority.
CERTIFICATES = Path("/etc/docker/certs.d")


class _Session(Session):
    """Has proxies and authorities of the environment, as the library does, but not the credentials in ~/.netrc."""

    def __init__(self) -> None:
        super().__init__()
        # Without one of its own the library takes those.
        self.auth = lambda request: request

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        """After a redirect, too, where the library looks for them once more. Another host gets no credentials."""
        before, after = response.request.url or "", prepared_request.url or ""
        if self.should_strip_auth(before, after):
            prepared_request.headers.pop("Authorization", None)


class Connection:
    """To one registry, such as `ghcr.io`."""

    def __init__(self, host: str) -> None:
        self._login = host
        self._host = HUB_HOST if host == HUB else host
        self._scheme = "http" if _speaks_plain_http(host) else "https"
        self._session = _Session()
        authority = CERTIFICATES / self._host / "ca.crt"
        if authority.is_file():
            self._session.verify = str(authority)
        self._authorization: dict[str, str] = {}

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        data: bytes = b"",
        also: tuple[int, ...] = (),
    ) -> Response:
        """Ask the registry; `also` are statuses besides 200 that are an answer.

        Raises:
            UserError: when it does not answer, refuses, or answers with another status.
        """
        url = urljoin(f"{self._scheme}://{self._host}/v2/", path)
        try:
            told = self._send(method, url, headers or {}, data)
            if told.status_code == UNAUTHORIZED:
                # Each answer holds for what was asked for: a token for reading does not do for writing.
                self._authorization = self._authorize(told.headers.get("WWW-Authenticate", ""), path)
                told = self._send(method, url, headers or {}, data)
        except RequestException as error:
            raise UserError(f"registry {self._host} does not answer: {_reason(error)}") from None
        if told.status_code in (UNAUTHORIZED, FORBIDDEN):
            raise self._refused(path)
        if told.status_code not in (OK, *also):
            said = " ".join(told.text.split())[:200]
            raise UserError(f"registry {self._host} says {told.status_code} to {method} {path}: {said}")
        return told

    def _send(self, method: str, url: str, headers: dict[str, str], data: bytes) -> Response:
        # A Location of an upload may be on another host, which is to have no credentials.
        mine = self._authorization if url.startswith(f"{self._scheme}://{self._host}/") else {}
        return self._session.request(method, url, headers={**headers, **mine}, data=data, timeout=SECONDS)

    def _authorize(self, challenge: str, path: str) -> dict[str, str]:
        """The header that answers the registry's question who asks, of the distribution specification."""
        kind, _, told = challenge.partition(" ")
        asked = parse_dict_header(told)
        user, secret = _credentials(self._login)
        basic = {"Authorization": f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"} if user else {}
        if kind.lower() == "basic" and basic:
            return basic
        if kind.lower() != "bearer":
            raise self._refused(path)
        realm = str(asked.pop("realm", ""))
        if not realm.startswith((f"{self._scheme}://", "https://")):
            raise UserError(f"registry {self._host} wants credentials sent to {realm}, unprotected; nothing was sent")
        answer = self._session.get(realm, params=asked, headers=basic, timeout=SECONDS)
        given = answer.json() if answer.status_code == OK else {}
        token = given.get("token") or given.get("access_token")
        if not token:
            raise self._refused(path)
        return {"Authorization": f"Bearer {token}"}

    def _refused(self, path: str) -> UserError:
        return UserError(f"registry {self._host} refuses {path}; `docker login {self._login}` lets it know you")


def _credentials(host: str) -> tuple[str, str]:
    """User and secret that the docker command has for a registry, in its file or its helper; empty without.

    Raises:
        UserError: when the helper fails, or what is kept is of a kind that only the docker command can use.
    """
    # A helper that is missing is told of by a warning and by an error.
    with engine_errors(f"reading docker's credentials for {host}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = docker.auth.load_config().resolve_authconfig(host) or {}
    kept = {name.lower(): value for name, value in kept.items()}
    if kept.get("identitytoken"):
        raise UserError(f"docker has an identity token for {host}; `docker login {host}` with an access token instead")
    return str(kept.get("username") or ""), str(kept.get("password") or "")


def _speaks_plain_http(host: str) -> bool:
    """Return whether the registry is on loopback, or the engine was told that it is insecure."""
    name = host.rpartition(":")[0] or host
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        address = None
    if name == "localhost" or (address and address.is_loopback):
        return True
    told: dict[str, Any] = {}
    with suppress(UserError):
        engine = reach_engine()
        told = (engine.facts.get("RegistryConfig") or {}) if engine else {}
    listed = (told.get("IndexConfigs") or {}).get(host)
    if listed:
        return not listed.get("Secure", True)
    networks = (ipaddress.ip_network(network) for network in told.get("InsecureRegistryCIDRs") or ())
    return address is not None and any(address in network for network in networks)


def _reason(error: RequestException) -> str:
    """The system's word for it, such as `Connection refused`."""
    text = str(error).split("Caused by ")[-1].rstrip("')\"")
    return text.rsplit(": ", 1)[-1]
