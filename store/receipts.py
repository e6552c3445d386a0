"""Receipts of `forget`: what was removed, as JSON signed with the home's key (`store.signing`), which others check by its public half.

Receipts of Patina 0.2 are signed by HMAC with `receipt_key`: they convince only their own home, which still checks them. That key also makes the
fingerprints of what was removed, which say nothing to others.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from pathlib import Path

from store.disk import write_whole
from store.errors import ConfigError
from store.signing import ALGORITHM, SigningKey, read_signing_key
from store.values import Json
from store.version import COMMAND

KEY_FILE = "receipt_key"
FOLDER = "receipts"
_KIND = "patina forget receipt"
_EARLIER = "HMAC-SHA256"


def receipt_key(home: Path, *, makes_one: bool = True) -> bytes:
    """Return the key of the fingerprints and of earlier receipts; the first call makes it (mode 0600).

    Raises:
        ConfigError: there is none, or it cannot be read or written.
    """
    path = home / KEY_FILE
    try:
        if makes_one and not path.exists():
            write_whole(path, f"{secrets.token_hex(32)}\n".encode("ascii"), once=True)
        return bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the key of the receipts, {path}, cannot be used: {exc}") from exc


def sign(receipt: Json, key: SigningKey) -> Json:
    """Return the receipt with its kind and signature."""
    whole = {**receipt, "kind": _KIND, "signed_with": ALGORITHM, "signed_by": key.fingerprint}
    return {**whole, "signature": base64.b64encode(key.sign(_body(whole))).decode("ascii")}


def receipt_path(home: Path, receipt_id: str) -> Path:
    """Return where a receipt lies."""
    return home / FOLDER / f"{receipt_id}.json"


def write_receipt(home: Path, receipt: Json) -> Path:
    """Write a signed receipt to the home's folder of receipts, whole or not at all; returns its path. Raises: ConfigError."""
    path = receipt_path(home, receipt["id"])
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        for left in path.parent.glob(f".{path.name}.*.part"):  # of a process that died
            left.unlink()
        write_whole(path, json.dumps(receipt, indent=1, sort_keys=True).encode())
    except OSError as exc:
        raise ConfigError(f"the receipt {path} cannot be written: {exc.strerror or exc}") from exc
    return path


def read_receipt(home: Path, path: Path) -> Json:
    """Return a receipt whose signature is right, by this home.

    Raises:
        ConfigError: it cannot be read, is no receipt, was changed, or is of another home.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the receipt {path} cannot be read: {exc}") from exc
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        raise ConfigError(f"{path} is no receipt of `{COMMAND} forget`")
    signature = str(found.pop("signature", ""))
    if not _is_right(home, found, signature):
        raise ConfigError(f"the signature of {path} is wrong: it was changed, or it is of another home")
    return found


def _is_right(home: Path, receipt: Json, signature: str) -> bool:
    if receipt.get("signed_with") == _EARLIER:
        own = hmac.new(receipt_key(home, makes_one=False), _body(receipt), hashlib.sha256).hexdigest()
        return hmac.compare_digest(signature, own)
    try:
        given = base64.b64decode(signature, validate=True)
    except ValueError:
        return False
    key = read_signing_key(home, makes_one=False)
    return receipt.get("signed_with") == ALGORITHM and key.is_signature(given, _body(receipt))


def _body(receipt: Json) -> bytes:
    """Return what is signed."""
    return json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
