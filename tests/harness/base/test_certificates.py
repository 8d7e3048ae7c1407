from pathlib import Path

import pytest

from harness.base import certificates
from harness.base.certificates import trusted_file, trusting


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CACHE", tmp_path / "cache")


def test_where_nothing_is_named_nothing_changes() -> None:
    assert trusted_file({"HOME": "/"}) is None
    assert trusting({"HOME": "/", "SSL_CERT_DIR": "/x"}) == {"HOME": "/", "SSL_CERT_DIR": "/x"}
    # A named file that does not exist is ignored.
    assert trusting({"PIP_CERT": "/nowhere.pem"}) == {"PIP_CERT": "/nowhere.pem"}


def test_every_authority_that_is_named_is_in_the_one_file(tmp_path: Path) -> None:
    given = {}
    for name in certificates.NAMED:
        (tmp_path / name).write_text(f"authority of {name}")
        given[name] = str(tmp_path / name)
    changed = trusting({**given, "SSL_CERT_DIR": "/etc/ssl/certs"})
    files = {changed[name] for name in certificates.NAMED[1:]}
    assert len(files) == 1
    assert "SSL_CERT_DIR" not in changed
    text = Path(files.pop()).read_text()
    assert all(f"authority of {name}" in text for name in certificates.NAMED)
    # The file also has the authorities of the system.
    assert not certificates.SYSTEM.is_file() or certificates.SYSTEM.read_text()[:200] in text
