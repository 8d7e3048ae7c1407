"""The user's key for signing, and the public keys that the user trusts: ECDSA on P-256, as in cosign."""

import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from harness.base.errors import UserError
from harness.base.files.storage import (
    cannot_be_written,
    create,
    make_folder_durably,
    read_regular,
    unfinished,
    write_durably,
)
from harness.base.paths import state_folder

OWN_NAME = "you"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
SHORT = 12
# Most bytes of a file with a public key.
LARGEST_KEY = 1 << 20


@dataclass(frozen=True)
class PublicKey:
    """A public key; `der` is its SubjectPublicKeyInfo."""

    der: bytes

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint by which people compare the key."""
        return f"SHA256:{self.hint.rstrip('=')}"

    @property
    def hint(self) -> str:
        """Return the identifier of the key in a bundle."""
        return b64encode(sha256(self.der).digest()).decode()

    @property
    def line(self) -> str:
        """Return the key as one word, as in matrix.yaml and annotations."""
        return b64encode(self.der).decode()

    @property
    def pem(self) -> bytes:
        """Return the key as a PEM file, which cosign reads."""
        return _public(self.der).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def signed(self, content: bytes, signature: bytes) -> bool:
        """Return whether this key made a signature of some content."""
        try:
            _public(self.der).verify(signature, content, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A private key for signing."""

    private: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> PublicKey:
        """Return the public key that belongs to this key."""
        spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return PublicKey(self.private.public_key().public_bytes(*spki))

    def sign(self, content: bytes) -> bytes:
        """Return the signature of some content, which is deterministic, so that signing again adds nothing."""
        return self.private.sign(content, ec.ECDSA(SHA256(), deterministic_signing=True))


def keys_folder() -> Path:
    """Return the folder with the user's keys."""
    return state_folder() / "keys"


def own_key() -> SigningKey | None:
    """Return the user's key; None if there is none yet.

    Raises:
        UserError: when the key cannot be read.
    """
    file = keys_folder() / "own.pem"
    try:
        found = load_pem_private_key(read_regular(file), None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{file}: is not a usable key: {error}; move it away, and `matrix keys` makes one") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(found.curve, ec.SECP256R1):
        raise UserError(f"{file}: is not an ECDSA key on P-256; move it away, and `matrix keys` makes one")
    return SigningKey(found)


def ensure_own_key() -> SigningKey:
    """Return the user's key, made now if there is none yet; only the user can read it.

    Raises:
        UserError: when the key cannot be read or written.
    """
    if found := own_key():
        return found
    made = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    file = keys_folder() / "own.pem"
    private = made.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    temporary = unfinished(file)
    try:
        make_folder_durably(file.parent)
        with create(temporary) as stream:
            # Restrict the permissions before anything is written.
            temporary.chmod(0o600)
            stream.write(private)
        # Link it, so that of two processes that make a key at the same time both use the same one.
        file.hardlink_to(temporary)
    except FileExistsError:
        pass
    except OSError as error:
        raise cannot_be_written(file, error) from None
    finally:
        temporary.unlink(missing_ok=True)
    found = own_key()
    if found is None:
        raise UserError(f"{file}: was written and is gone; give the command again")
    return found


def read_public_key(text: str) -> PublicKey:
    """Return the public key in the text of a PEM file, or in a line that `matrix keys` printed.

    Raises:
        UserError: when the text is no usable key.
    """
    try:
        if "-----BEGIN" in text:
            key = load_pem_public_key(text.encode())
        else:
            key = load_der_public_key(b64decode(text.strip(), validate=True))
    except (ValueError, Error, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UserError("this is not a public ECDSA key on P-256; `matrix keys` prints the key of its user")
    return PublicKey(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def public_key_in(file: Path) -> PublicKey:
    """Return the public key in a file, which somebody may have handed over.

    Raises:
        UserError: when the file cannot be read or holds no usable key.
    """
    try:
        return read_public_key(read_regular(file.resolve(), LARGEST_KEY).decode("ascii", "replace"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read as a key: {error.strerror}; remove it, or give another") from None
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def trusted_keys() -> dict[str, PublicKey]:
    """Return the public keys that the user trusts, by the names that the user gave them."""
    return {file.stem: public_key_in(file) for file in sorted((keys_folder() / "trusted").glob("*.pub"))}


def trust(key: PublicKey, name: str | None = None) -> str:
    """Trust a key from now on; return its name.

    Raises:
        UserError: when the name is invalid, or another key has it.
    """
    name = name or re.sub(r"[^A-Za-z0-9]", "", key.fingerprint.removeprefix("SHA256:"))[:SHORT]
    if not re.fullmatch(NAME, name) or name == OWN_NAME:
        raise UserError(f"{name!r} is not a name for a key; use letters, digits, `.`, `_` and `-`")
    if trusted_keys().get(name, key) != key:
        raise UserError(f"another key has the name {name}; `matrix keys --distrust {name}` forgets it")
    write_durably(keys_folder() / "trusted" / f"{name}.pub", key.pem)
    return name


def distrust(name: str) -> None:
    """Stop trusting a key.

    Raises:
        UserError: when no trusted key has that name.
    """
    if name not in trusted_keys():
        raise UserError(f"no key named {name} is trusted; `matrix keys` lists them")
    (keys_folder() / "trusted" / f"{name}.pub").unlink(missing_ok=True)


def known_keys(listed: Mapping[str, str]) -> dict[str, PublicKey]:
    """Return the keys that may sign, by name: the user's own, those that the user trusts, and those in `listed`.

    Raises:
        UserError: when a key cannot be read, or a listed one has the name of the user's own.
    """
    if OWN_NAME in listed:
        raise UserError(f"signatures: keys: {OWN_NAME}: only your own key has that name; give this one another")
    own = own_key()
    mine = {OWN_NAME: own.public} if own else {}
    return {**{name: read_public_key(line) for name, line in listed.items()}, **trusted_keys(), **mine}


def _public(der: bytes) -> ec.EllipticCurvePublicKey:
    key = load_der_public_key(der)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("only ECDSA keys are made here")
    return key
