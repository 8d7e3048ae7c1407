import platform
import pwd
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from harness.base.paths import CHECKOUT
from harness.registry.share import names
from harness.registry.share.names import read_scrubber


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a host called trainer7.example.org that alice and bob use."""

    def user(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", 1, 1, "", f"/srv/people/{name}", "/bin/sh"))

    addresses = [SimpleNamespace(address=place) for place in ("192.0.2.7", "127.0.0.1", "::1")]
    monkeypatch.setattr(platform, "node", lambda: "trainer7")
    monkeypatch.setattr(socket, "gethostname", lambda: "trainer7")
    monkeypatch.setattr(socket, "getfqdn", lambda: "trainer7.example.org")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": addresses})
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user("alice"))
    monkeypatch.setattr(pwd, "getpwnam", user)
    monkeypatch.setattr(names, "_login", lambda: "bob")


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("on trainer7: trainer7.example.org", "on <host>: <host>"),
        ("alice and bob at 192.0.2.7, 127.0.0.1", "<user> and <user> at <host>, 127.0.0.1"),
        ("/srv/people/alice/x /srv/people/carol/x", "<home>/x <path>"),
        ("by carol on gpubox", "by carol on <host>"),
    ],
)
def test_what_this_host_and_its_users_are_called_is_taken_out(text: str, scrubbed: str, tmp_path: Path) -> None:
    assert read_scrubber(tmp_path, ["gpubox"]).text(text) == scrubbed


def test_results_and_checkout_are_called_what_they_are(tmp_path: Path) -> None:
    text = read_scrubber(tmp_path).text(f"{tmp_path}/records.db and {CHECKOUT}/matrix.yaml")
    assert text == "<results>/records.db and <checkout>/matrix.yaml"


@pytest.mark.usefixtures("_known")
def test_a_user_without_a_name_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> pwd.struct_passwd:
        raise KeyError

    for name in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(pwd, name, unknown)
    monkeypatch.setattr(names, "_login", lambda: None)
    assert read_scrubber(tmp_path).text("on trainer7") == "on <host>"
