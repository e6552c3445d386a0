"""The home's signing key, and versions that are signed with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_public_key,
)

from store.errors import AdapterError, AdapterMismatch, ConfigError
from store.manifest import MANIFEST, SIGNATURE, ModelDigests, build_manifest, check_version, digest_folder
from store.signing import PRIVATE_FILE, PUBLIC_FILE, read_signing_key
from store.version_signature import check_signature, sign_files
from tests.clients.packages import pip, run
from tests.kill_points import run_until

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": bytes(64), "patina/metrics.json": b"{}", "patina.x": b"x"}  # fmt: skip


def make_version(home: Path, name: str = "mine@1.abc") -> Path:
    """Return the folder of a version that the home has signed."""
    folder = home / "adapters" / name
    whole = {**FILES, MANIFEST: build_manifest(FILES, name="mine@1", model=ModelDigests())}
    digests = {path: hashlib.sha256(body).hexdigest() for path, body in whole.items()}
    for path, body in {**whole, SIGNATURE: sign_files(name, digests, read_signing_key(home))}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
    return folder


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        read_signing_key(tmp_path, makes_one=False)
    key = read_signing_key(tmp_path)
    assert (tmp_path / PRIVATE_FILE).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / PUBLIC_FILE).read_bytes() == key.public_pem
    public = load_pem_public_key(key.public_pem)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    public.verify(key.sign(b"text"), b"text", ec.ECDSA(SHA256()))
    assert not key.is_signature(key.sign(b"text"), b"other")
    (tmp_path / PUBLIC_FILE).unlink()
    assert read_signing_key(tmp_path).public_pem == key.public_pem == (tmp_path / PUBLIC_FILE).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {PRIVATE_FILE, PUBLIC_FILE}


def _public_pem(home: Path) -> bytes:
    return read_signing_key(home).public_pem


def test_those_that_need_it_at_once_make_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            home = tmp_path / str(number)
            home.mkdir()
            assert set(pool.map(_public_pem, [home] * 8)) == {(home / PUBLIC_FILE).read_bytes()}


def test_it_may_be_killed_at_every_file_operation_while_it_makes_one(tmp_path: Path) -> None:
    def make(home: Path) -> Callable[[], int]:
        return lambda: read_signing_key(home) is None

    (tmp_path / "whole").mkdir()
    code, points = run_until(make(tmp_path / "whole"), 0)
    assert (code, points > 4) == (0, True)
    for last in range(1, points + 1):
        home = tmp_path / str(last)
        home.mkdir()
        assert run_until(make(home), last) == (None, -1)
        before = (home / PRIVATE_FILE).read_bytes() if (home / PRIVATE_FILE).exists() else None
        read_signing_key(home)
        assert before in (None, (home / PRIVATE_FILE).read_bytes())


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())]
)
def test_a_key_of_another_kind_or_a_torn_one_is_refused(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey
) -> None:
    path = tmp_path / PRIVATE_FILE
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ConfigError, match="it is no key on P-256"):
        read_signing_key(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match="cannot be used"):
        read_signing_key(tmp_path)


# ---- versions


def write(name: str, body: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(body)


def in_bundle(change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        bundle = json.loads((folder / SIGNATURE).read_bytes())
        change(bundle)
        (folder / SIGNATURE).write_text(json.dumps(bundle))

    return apply


def by_another_key(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    body = sign_files(folder.name, digest_folder(folder), read_signing_key(other))
    (folder / SIGNATURE).write_bytes(body)


CHANGES: dict[str, Callable[[Path], object]] = {
    "changed": write("patina/metrics.json", b"{ }"),
    "manifest changed": write(MANIFEST, b"{}"),
    "added": write("new.bin", b""),
    "removed": lambda folder: (folder / "patina.x").unlink(),
    "renamed": lambda folder: (folder / "patina.x").rename(folder / "patina.y"),
    "another key": by_another_key,
    "payload": in_bundle(lambda bundle: bundle["dsseEnvelope"].update(payload="e30=")),
    "type": in_bundle(lambda bundle: bundle["dsseEnvelope"].update(payloadType="text/plain")),
    "signature": in_bundle(
        lambda bundle: bundle["dsseEnvelope"].update(signatures=[{"sig": "MAYCAQECAQE="}])
    ),
    "no signature": in_bundle(lambda bundle: bundle["dsseEnvelope"].update(signatures=[])),
    "hint": in_bundle(lambda bundle: bundle["verificationMaterial"].update(publicKey={"hint": "0" * 64})),
    "torn": write(SIGNATURE, b"{"),
    "lost": lambda folder: (folder / SIGNATURE).unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_version_that_was_changed_has_no_valid_signature(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = make_version(tmp_path)
    check_signature(folder, tmp_path)
    assert check_version(folder)
    change(folder)
    with pytest.raises(AdapterMismatch):
        check_signature(folder, tmp_path)


def test_a_signature_that_cannot_be_read_is_no_wrong_one(tmp_path: Path) -> None:
    folder = make_version(tmp_path)
    (folder / SIGNATURE).unlink()
    (folder / SIGNATURE).mkdir()
    with pytest.raises(AdapterError, match="cannot be checked"):
        check_signature(folder, tmp_path)


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.timeout(900)
def test_the_stock_verifier_accepts_a_version_and_refuses_a_changed_one(tmp_path: Path) -> None:
    # The package's own list of requirements lacks pyOpenSSL.
    python = pip("model-signing==1.1.1", "pyopenssl==26.4.0")
    for change in (None, *(CHANGES[name] for name in CHANGES if name not in ("lost", "hint"))):
        home = tmp_path / str(len(list(tmp_path.iterdir())))
        folder = make_version(home_of(home))
        command = [
            str(python), "-m", "model_signing", "verify", "key", str(folder), "--signature", str(folder / SIGNATURE),
            "--public_key", str(home / PUBLIC_FILE),
        ]  # fmt: skip
        if change is None:
            assert "Verification succeeded" in run(command, tmp_path)
        else:
            change(folder)
            with pytest.raises(AssertionError):
                run(command, tmp_path)


def home_of(path: Path) -> Path:
    path.mkdir()
    return path
