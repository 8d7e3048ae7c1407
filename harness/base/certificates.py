"""The certificate authorities that the tools of this project trust: the system's, and all that the user named."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from harness.base.files.storage import write_durably
from harness.base.paths import CACHE

OWN = "MATRIX_CA"
# Variables that name a file of authorities. Each tool reads one of them, some only if another one is not set.
NAMED = (OWN, "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
SYSTEM = Path("/etc/ssl/certs/ca-certificates.crt")


def trusting(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which pip and uv trust the authorities of every variable of `NAMED`.

    The environment is returned unchanged if none of them names a file.
    """
    bundle = trusted_file(environment)
    if bundle is None:
        return dict(environment)
    others = {name: str(bundle) for name in NAMED[1:]}
    # With a folder as well, uv would use only the folder.
    return {name: value for name, value in environment.items() if name != "SSL_CERT_DIR"} | others


def trusted_file(environment: Mapping[str, str]) -> Path | None:
    """Return one file with the authorities of the system and of all named files; None where no file is named."""
    named = {Path(environment[name]) for name in NAMED if environment.get(name)}
    files = sorted(file for file in named if file.is_file())
    if not files:
        return None
    # Imported here, because it takes time, and most commands need no server.
    import ssl  # noqa: PLC0415

    system = {SYSTEM, Path(ssl.get_default_verify_paths().cafile or SYSTEM)}
    content = b"\n".join(file.read_bytes() for file in [*files, *sorted(system - named)] if file.is_file())
    bundle = CACHE / "certificates" / f"{hashlib.sha256(content).hexdigest()[:12]}.pem"
    if not bundle.is_file():
        write_durably(bundle, content)
    return bundle
