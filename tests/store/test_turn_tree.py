"""The tree of turns and its proofs; they are checked by the stand-alone verifier, which shares no code with them."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import verify_receipt
from store.errors import ConfigError
from store.receipts import read_receipt, receipt_key, sign, write_receipt
from store.signing import PUBLIC_FILE, SigningKey, read_signing_key
from store.turn_tree import TurnTree, prove_removal, turn_digest

LINES = 60


def rfc_6962(digests: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, word for word."""
    if not digests:
        return hashlib.sha256(b"").digest()
    if len(digests) == 1:
        return hashlib.sha256(b"\0" + digests[0]).digest()
    k = max(2**power for power in range(20) if 2**power < len(digests))
    return hashlib.sha256(b"\1" + rfc_6962(digests[:k]) + rfc_6962(digests[k:])).digest()


def digests_of(turn_ids: list[str]) -> bytes:
    return b"".join(map(turn_digest, turn_ids))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return read_signing_key(tmp_path_factory.mktemp("home"))


def check(receipt: Any, key: SigningKey) -> str:
    """Check a receipt as others do, after it went through a file."""
    return verify_receipt.check(json.loads(json.dumps(receipt)), load_pem_public_key(key.public_pem))


@pytest.mark.parametrize("size", [*range(20), 63, 64, 65, 100])
def test_the_root_is_that_of_rfc_6962(size: int) -> None:
    digests = sorted(turn_digest(str(number)) for number in range(size))
    assert TurnTree(digests).root == rfc_6962(digests)


@settings(deadline=None)
@given(turns=st.sets(st.text(max_size=3), max_size=40), share=st.floats(0, 1), seed=st.integers())
def test_what_was_removed_is_proved(turns: set[str], share: float, seed: int, key: SigningKey) -> None:
    ids = sorted(turns)
    gone = sorted(random.Random(seed).sample(ids, round(share * len(ids))))
    random.Random(seed).shuffle(ids)
    receipt = sign({"turns": dict.fromkeys(gone, ""), "proof": prove_removal(digests_of(ids), gone)}, key)
    assert check(receipt, key).startswith(
        f"right: {len(gone)} turns were in the record of {len(ids)}, and are not in the {len(ids) - len(gone)} left"
    )


def make_receipt(gone: list[str], size: int = 21, **changes: Any) -> dict[str, Any]:
    ids = [f"turn-{number}" for number in range(size)]
    proof = prove_removal(digests_of(ids), gone)
    return {"id": "one", "at": 1.5, "turns": dict.fromkeys(gone, ""), "proof": proof, **changes}


def leaves(tree: Any) -> list[list[str]]:
    """Return the leaves of a pruned tree, which may be changed in place."""
    if isinstance(tree, str):
        return []
    return [tree] if len(tree) == 1 else [leaf for part in tree for leaf in leaves(part)]


def cut_off(tree: Any) -> list[list[Any]]:
    """Return the nodes of a pruned tree that hold the hash of a subtree."""
    if isinstance(tree, str) or len(tree) == 1:
        return []
    own = [tree] if any(isinstance(part, str) for part in tree) else []
    return [*own, *(node for part in tree for node in cut_off(part))]


def change_path(receipt: dict[str, Any], when: str) -> None:
    node = cut_off(receipt["proof"][when]["tree"])[0]
    place = 0 if isinstance(node[0], str) else 1
    node[place] = "0" * 64


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another id": lambda receipt: receipt.update(turns={"turn-8": ""}),
    "one more id": lambda receipt: receipt["turns"].update({"turn-8": ""}),
    "no id": lambda receipt: receipt["turns"].clear(),
    "root before": lambda receipt: receipt["proof"]["before"].update(root="0" * 64),
    "root after": lambda receipt: receipt["proof"]["after"].update(root="0" * 64),
    "path before": lambda receipt: change_path(receipt, "before"),
    "path after": lambda receipt: change_path(receipt, "after"),
    "leaf before": lambda receipt: leaves(receipt["proof"]["before"]["tree"])[0].__setitem__(0, "0" * 64),
    "leaf after": lambda receipt: leaves(receipt["proof"]["after"]["tree"])[0].__setitem__(0, "0" * 64),
    "size": lambda receipt: receipt["proof"]["after"].update(size=19),
    "a tree that still has it": lambda receipt: receipt["proof"].update(after=receipt["proof"]["before"]),
    "no neighbours": lambda receipt: receipt["proof"]["after"].update(tree=receipt["proof"]["after"]["root"]),
    "a long hash": lambda receipt: receipt["proof"]["after"].update(tree="0" * 65),
    "no proof": lambda receipt: receipt.update(proof=None),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_receipt_with_a_changed_part_is_refused_also_where_the_owner_signs_it(
    lie: Callable[[dict[str, Any]], object], key: SigningKey
) -> None:
    honest = make_receipt(["turn-7"])
    assert check(sign(honest, key), key)
    changed = copy.deepcopy(honest)
    lie(changed)
    with pytest.raises((ValueError, LookupError, TypeError, OverflowError)):
        check(sign(changed, key), key)
    signed = sign(honest, key)
    lie(signed)
    with pytest.raises((InvalidSignature, ValueError)):
        check(signed, key)


def test_the_home_refuses_a_receipt_that_was_changed_or_that_another_home_signed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = tmp_path / "one", tmp_path / "other"
    receipt_key(one)
    path = write_receipt(one, sign(make_receipt(["turn-7"]), read_signing_key(one)))
    assert read_receipt(one, path)["turns"] == {"turn-7": ""}
    read_signing_key(other)
    with pytest.raises(ConfigError, match="changed, or it is of another home"):
        read_receipt(other, path)
    signed = json.loads(path.read_text())
    for name, value in (
        ("at", 2.5),
        ("signed_with", "HMAC-SHA256"),
        ("signed_with", "none"),
        ("signature", "?"),
    ):
        path.write_text(json.dumps({**signed, name: value}))
        with pytest.raises(ConfigError, match="changed, or it is of another home"):
            read_receipt(one, path)


def test_the_verifier_needs_nothing_of_patina(tmp_path: Path) -> None:
    assert len(Path(verify_receipt.__file__).read_text().splitlines()) <= LINES
    (tmp_path / "verify_receipt.py").write_text(Path(verify_receipt.__file__).read_text())
    path = write_receipt(tmp_path, sign(make_receipt(["turn-7", "turn-11"]), read_signing_key(tmp_path)))

    def ask() -> tuple[int, str]:
        command = [sys.executable, "-I", "verify_receipt.py", str(path), PUBLIC_FILE]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr

    assert ask() == (0, "right: 2 turns were in the record of 21, and are not in the 19 left of it\n")
    path.write_text(path.read_text().replace("turn-7", "turn-8"))
    assert ask() == (1, "NOT SHOWN: the signature is wrong: changed, or of another key\n")
    path.write_text(json.dumps({"turns": {}, "signed_with": "HMAC-SHA256", "signature": ""}))
    code, message = ask()
    assert (code, "it is of an earlier Patina" in message) == (1, True)
