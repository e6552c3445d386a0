"""Receipts of `forget`: what was removed, as JSON signed with a key of the home.

The signature (HMAC-SHA256) shows the home's owner that the receipt is of this home and unchanged. Who lacks the key cannot check it, and who has it
could have written it: it is no proof to third parties.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from store.errors import ConfigError
from store.values import Json
from store.version import COMMAND

KEY_FILE = "receipt_key"
FOLDER = "receipts"
_KIND = "patina forget receipt"


def receipt_key(home: Path, *, makes_one: bool = True) -> bytes:
    """Return the key of the home's receipts; the first call makes it (mode 0600).

    Raises:
        ConfigError: there is none, or it cannot be read or written.
    """
    path = home / KEY_FILE
    try:
        if makes_one and not path.exists():
            beside = path.with_name(f".{path.name}.{os.getpid()}.part")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32) + "\n")
            with contextlib.suppress(FileExistsError):  # another process made it meanwhile
                os.link(beside, path)
            beside.unlink()
        return bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the key of the receipts, {path}, cannot be used: {exc}") from exc


def sign(receipt: Json, key: bytes) -> Json:
    """Return the receipt with its kind and signature."""
    whole = {**receipt, "kind": _KIND, "signed_with": "HMAC-SHA256"}
    return {**whole, "signature": _signature(whole, key)}


def receipt_path(home: Path, receipt_id: str) -> Path:
    """Return where a receipt lies."""
    return home / FOLDER / f"{receipt_id}.json"


def write_receipt(home: Path, receipt: Json) -> Path:
    """Write a signed receipt to the home's folder of receipts, whole or not at all; returns its path. Raises: ConfigError."""
    path = receipt_path(home, receipt["id"])
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        beside = path.with_name(f".{path.name}.part")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(receipt, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as exc:
        raise ConfigError(f"the receipt {path} cannot be written: {exc.strerror or exc}") from exc
    return path


def read_receipt(path: Path, key: bytes) -> Json:
    """Return a receipt whose signature is right.

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
    if not hmac.compare_digest(signature, _signature(found, key)):
        raise ConfigError(f"the signature of {path} is wrong: it was changed, or it is of another home")
    return found


def _signature(receipt: Json, key: bytes) -> str:
    body = json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hmac.new(key, body.encode("ascii"), hashlib.sha256).hexdigest()
