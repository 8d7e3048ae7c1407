"""Collects the names and addresses of this host and the names of its users, for a scrubber."""

import getpass
import os
import platform
import pwd
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from harness.base.paths import CHECKOUT
from harness.registry.share.scrub import HOST, Scrubber

USER, HOME = "<user>", "<home>"
LOOPBACK = ("127.", "::1", "00:00:00:00:00:00")


def read_scrubber(results: Path, hide: Iterable[str] = ()) -> Scrubber:
    """Return a scrubber that removes the names of this host and its users, and those in `hide`."""
    users = _users(results)
    homes = {user.pw_dir for user in users} | {os.path.expanduser("~")}  # noqa: PTH111
    places = {home: HOME for home in homes if home.strip("/")}
    places |= {str(results.absolute()): "<results>", str(CHECKOUT): "<checkout>"}
    words = dict.fromkeys([*_host_names(), *_addresses(), *hide], HOST)
    return Scrubber(places, words | {user.pw_name: USER for user in users})


def _users(results: Path) -> list[pwd.struct_passwd]:
    """Return the current user, the user behind sudo, and the owner of the results."""
    found = []
    with suppress(KeyError, OSError):
        found.append(pwd.getpwuid(results.stat().st_uid))
    for name in (os.environ.get("SUDO_USER"), _login()):
        with suppress(KeyError):
            found.append(pwd.getpwnam(name or ""))
    return found


def _login() -> str | None:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return None


def _host_names() -> set[str]:
    names = {platform.node(), socket.gethostname(), socket.getfqdn()}
    return names | {name.partition(".")[0] for name in names}


def _addresses() -> list[str]:
    """Return the addresses of this host, except loopback."""
    found = [address.address for addresses in psutil.net_if_addrs().values() for address in addresses]
    return [address.partition("%")[0] for address in found if address and not address.startswith(LOOPBACK)]
