"""Check a receipt of Patina's `forget` without Patina: python verify_receipt.py RECEIPT.json signing_key.pub (needs `cryptography`).
It shows that the key's owner signed this: the turns were in the record, and they are not in what was left of it. It does not show when (there is no
outside timestamp), nor what else held their words: the owner could sign an old or invented state."""

import base64
import bisect
import json
import sys
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def root_of(tree: Any, start: int, size: int, leaves: dict[int, bytes]) -> bytes:
    """Return the hash of a pruned tree (RFC 6962), and add its leaves: place -> SHA-256 of a turn's id."""
    if isinstance(tree, str):
        return int(tree, 16).to_bytes(32, "big")
    if size == 1:
        leaves[start] = int(tree[0], 16).to_bytes(32, "big")
        return sha256(b"\0" + leaves[start]).digest()
    half = 1 << (size - 1).bit_length() - 1
    both = root_of(tree[0], start, half, leaves) + root_of(tree[1], start + half, size - half, leaves)
    return sha256(b"\1" + both).digest()


def leaves_of(part: Any) -> tuple[dict[int, bytes], int]:
    root = root_of(part["tree"], 0, part["size"], leaves := dict[int, bytes]()).hex()
    need(root == part["root"] and [*leaves.values()] == sorted({*leaves.values()}), "a tree is wrong")
    return leaves, part["size"]


def check(receipt: Any, key: Any) -> str:
    signature, proof = base64.b64decode(receipt.pop("signature")), receipt.get("proof")
    need(proof is not None, "it holds no proof: it is of an earlier Patina, or the list of turns was lost")
    body = json.dumps(receipt, sort_keys=True, separators=(",", ":")).encode()
    key.verify(signature, body, ec.ECDSA(hashes.SHA256()))
    (was, before), (left, after) = (leaves_of(proof[when]) for when in ("before", "after"))
    turns = {sha256(one.encode("utf-8", "surrogatepass")).digest() for one in receipt["turns"]}
    need({*was.values()} == turns and before == after + len(turns), "a turn was not in the record")
    places, found = [-1, *left, after], [*left.values(), b""]
    for one in turns:
        at = bisect.bisect_left(found, one, 0, len(left))
        need(found[at] != one and places[at + 1] == places[at] + 1, "a turn may still be in the record")
    return f"right: {len(turns)} turns were in the record of {before}, and are not in the {after} left of it"


if __name__ == "__main__":
    try:
        with open(sys.argv[1], "rb") as text, open(sys.argv[2], "rb") as pem:
            print(check(json.load(text), serialization.load_pem_public_key(pem.read())))
    except (InvalidSignature, ValueError, LookupError, TypeError, OverflowError) as error:
        sys.exit(f"NOT SHOWN: {str(error) or 'the signature is wrong: changed, or of another key'}")
