"""The home's signing key, ECDSA P-256: with its public half others check versions (`model.sig`) and receipts of forgets.

`signing_key` (PKCS #8, mode 0600) never leaves the home but in backups. `signing_key.pub` is for others, who must get it from the owner in another
way than what it is to check.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from store.disk import write_whole
from store.errors import ConfigError

PRIVATE_FILE, PUBLIC_FILE = "signing_key", "signing_key.pub"
ALGORITHM = "ECDSA-P256-SHA256"
_HASH = ec.ECDSA(hashes.SHA256())


class SigningKey:
    """A home's key. Raises: ValueError: the PEM is no private key on P-256."""

    def __init__(self, pem: bytes) -> None:
        key = serialization.load_pem_private_key(pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("it is no key on P-256")
        self._key = key
        self.public_pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.fingerprint = hashlib.sha256(self.public_pem).hexdigest()

    def sign(self, body: bytes) -> bytes:
        """Return the signature (DER)."""
        return self._key.sign(body, _HASH)

    def is_signature(self, signature: bytes, body: bytes) -> bool:
        """Whether this key signed the body."""
        try:
            self._key.public_key().verify(signature, body, _HASH)
        except InvalidSignature:
            return False
        return True


def read_signing_key(home: Path, *, makes_one: bool = True) -> SigningKey:
    """Return the home's key; the first call makes it, and the file of its public half.

    Raises:
        ConfigError: there is none, or it cannot be read or written.
    """
    path, public = home / PRIVATE_FILE, home / PUBLIC_FILE
    try:
        if makes_one and not path.exists():
            fresh = ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            write_whole(path, fresh, once=True)
        key = SigningKey(path.read_bytes())
        if makes_one and (not public.exists() or public.read_bytes() != key.public_pem):
            write_whole(public, key.public_pem)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigError(f"the signing key {path} cannot be used: {exc}") from exc
    return key
