"""Tests of a registry as users have at home: TLS with their own authority, and a password that docker stores."""

import datetime
import ipaddress
import json
import os
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from harness.host.engine import Engine
from harness.registry.connection import CERTIFICATES
from tests.images.conftest import serve_registry
from tests.images.test_promote import HTPASSWD, RIGHT, WRONG
from tests.images.test_registry import matrix_command

PEM = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_certificates(folder: Path, address: str) -> tuple[Path, Path, Path]:
    """Return files with an authority's certificate, and with a server's certificate, signed by it, and key."""
    now = datetime.datetime.now(datetime.UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "server")}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")]) for name in keys}
    files = []
    for name, key in keys.items():
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = (
            x509.CertificateBuilder()
            .subject_name(names[name])
            .issuer_name(names["authority"])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "authority", path_length=None), critical=True)
            .add_extension(alternative, critical=False)
            .sign(keys["authority"], SHA256())
        )
        files.append(folder / f"{name}.crt")
        files[-1].write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(keys["server"].private_bytes(*PEM))
    return files[0], files[1], folder / "server.key"


@pytest.fixture
def address(engine: Engine) -> str:
    """Return an address of this host that is not loopback, where every engine requires TLS."""
    bridge = engine.client.networks.get("bridge").attrs["IPAM"]["Config"]
    gateway = next((str(one["Gateway"]) for one in bridge if one.get("Gateway")), None)
    if gateway is None or os.geteuid() != 0:
        pytest.skip("needs root, and an engine with a bridge of its own")
    return gateway


@pytest.fixture
def home_registry(address: str, registry: str, registry_storage: Path, tmp_path: Path) -> Iterator[str]:
    """Yield a second registry on the other tests' storage, with TLS and a password; the engine knows its authority."""
    authority, certificate, key = make_certificates(tmp_path, address)
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    with serve_registry(
        registry_storage,
        tmp_path / "home.yml",
        f"auth: {{htpasswd: {{realm: home, path: {tmp_path}/htpasswd}}}}\n",
        address,
        f"tls: {{certificate: {certificate}, key: {key}}}",
    ) as (host, _):
        place = CERTIFICATES / host
        place.mkdir(parents=True)
        shutil.copy(authority, place / "ca.crt")
        yield host
        shutil.rmtree(place)


@pytest.mark.usefixtures("on_small_base", "small_images")
def test_push_and_pull_by_an_authority_and_a_password_of_ones_own(
    home_registry: str, engine: Engine, tmp_path: Path
) -> None:
    place = f"{home_registry}/{token_hex(4)}"
    config = tmp_path / "docker" / "config.json"
    config.parent.mkdir()
    for plugin in Path(os.environ.get("DOCKER_CONFIG", "~/.docker")).expanduser().glob("cli-plugins"):
        (config.parent / "cli-plugins").symlink_to(plugin)

    def matrix(*words: str, expected: int = 0) -> str:
        # Another authority, configured for other purposes, does not disturb.
        other = {"DOCKER_CONFIG": str(config.parent), "REQUESTS_CA_BUNDLE": "/etc/ssl/certs/ca-certificates.crt"}
        done = matrix_command(*words, "--registry", place, expected=expected, **other)
        said = done.stdout + done.stderr
        # The output must not show the password.
        assert not any(word in said for word in ("secret", RIGHT, b64encode(b"secret").decode()))
        return said if expected else done.stdout

    for wrong in ({}, {"auths": {home_registry: {"auth": WRONG}}}):
        config.write_text(json.dumps(wrong))
        refused = matrix("push", "cpu-plain", expected=2)
        assert len(refused.strip().splitlines()[-1]) < 400
    config.write_text(json.dumps({"auths": {home_registry: {"auth": RIGHT}}}))
    reference = matrix("push", "cpu-plain").strip().splitlines()[-1]
    assert reference.startswith(f"{place}/vpoc@sha256:")
    engine.client.images.remove(f"{place}/vpoc:cpu-plain")
    assert " run` uses it" in matrix("pull", "cpu-plain", "--digest", reference.partition("@")[2])
    assert "signed by you" in matrix("verify", "cpu-plain", "--offline")
    config.write_text("{}")
    assert "docker login" in matrix("tags", expected=2)
