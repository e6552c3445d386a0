"""`model.sig` in a version's folder: the home's signature over every other file, in the format of OpenSSF Model Signing 1.0.

The stock verifier of the package `model-signing` accepts it: ``model_signing verify key FOLDER --signature FOLDER/model.sig --public_key
signing_key.pub``. It is a Sigstore bundle with an in-toto statement in a DSSE envelope (their specifications: docs.sigstore.dev/about/bundle,
in-toto/attestation, secure-systems-lab/dsse). It says that the home wrote these files, not that they are good.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from store.errors import AdapterError, AdapterMismatch
from store.manifest import SIGNATURE, digest_folder
from store.signing import SigningKey, read_signing_key

_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"


def sign_files(name: str, digests: Mapping[str, str], key: SigningKey) -> bytes:
    """Return the content of `model.sig` for files of these SHA-256 digests; ``name`` is the folder's, and only informs."""
    payload = json.dumps(_statement(name, digests)).encode()
    bundle = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": key.fingerprint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": _base64(payload),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": _base64(key.sign(_signed(payload))), "keyid": ""}],
        },
    }
    return json.dumps(bundle).encode() + b"\n"


def check_signature(folder: Path, home: Path) -> None:
    """Check that the home signed what a version's folder holds.

    Raises:
        AdapterMismatch: the signature is lost or another key's, or a file was changed, added or removed since.
        AdapterError: a file cannot be read.
        ConfigError: the home's key cannot be read.
    """
    path = folder / SIGNATURE
    try:
        bundle = json.loads(path.read_bytes())
        hint = bundle["verificationMaterial"]["publicKey"]["hint"]
        envelope = bundle["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        (signature,) = (base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"])
        kinds = (bundle["mediaType"], envelope["payloadType"])
        digests = digest_folder(folder)
    except FileNotFoundError:
        raise AdapterMismatch(f"the adapter in {folder} has lost its {SIGNATURE}") from None
    except OSError as error:
        raise AdapterError(f"{path} cannot be checked: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise AdapterMismatch(f"{path} is no signature: {error}") from None
    key = read_signing_key(home, makes_one=False)
    if hint != key.fingerprint:
        raise AdapterMismatch(f"{path} is of another key than this home's")
    if kinds != (_BUNDLE, _PAYLOAD) or not key.is_signature(signature, _signed(payload)):
        raise AdapterMismatch(f"the signature in {path} is wrong")
    signed = json.loads(payload)
    if signed != _statement(signed["subject"][0]["name"], digests):
        raise AdapterMismatch(f"the files in {folder} are not those that {SIGNATURE} was made for")


def _statement(name: str, digests: Mapping[str, str]) -> dict[str, Any]:
    ordered = sorted(digests, key=lambda path: PurePosixPath(path).parts)
    whole = hashlib.sha256(b"".join(bytes.fromhex(digests[path]) for path in ordered)).hexdigest()
    return {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": whole}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE],
            },
            "resources": [{"name": path, "algorithm": "sha256", "digest": digests[path]} for path in ordered],
        },
    }


def _signed(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding: what is signed."""
    return f"DSSEv1 {len(_PAYLOAD)} {_PAYLOAD} {len(payload)} ".encode() + payload


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
