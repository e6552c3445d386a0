"""A Merkle tree over the turns of a record, and the proof that a forget removed turns from it. No files.

Leaves are the SHA-256 digests of turn ids, in ascending order, so that a proof names no turn that stays; leaf and node hashes are those of
RFC 6962. A proof holds two pruned trees. The one from before the deletion has each removed turn as a leaf. The one from after it has the two
adjacent leaves between which each would lie. `scripts/verify_receipt.py` checks one without Patina.

A pruned tree as JSON: the hash of a subtree that was cut off (hex), a leaf ``[digest]``, or ``[left, right]``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from store.values import Json

DIGEST = 32


def turn_digest(turn_id: str) -> bytes:
    """Return what stands for a turn in the tree."""
    return hashlib.sha256(turn_id.encode("utf-8", "surrogatepass")).digest()


class TurnTree:
    """The tree of these digests, which are sorted and distinct; 64 bytes a turn."""

    def __init__(self, digests: Sequence[bytes]) -> None:
        self._digests = digests
        level = b"".join(hashlib.sha256(b"\0" + one).digest() for one in digests)
        self._levels = [level]  # hashes one after the other, leaves first
        while len(level) > DIGEST:
            pairs = len(level) // (2 * DIGEST)
            below = memoryview(level)
            above = [
                hashlib.sha256(b"\1" + below[start : start + 2 * DIGEST]).digest()
                for start in range(0, pairs * 2 * DIGEST, 2 * DIGEST)
            ]
            # The odd last hash goes up as it is, which makes RFC 6962's tree of any size.
            level = b"".join(above) + level[pairs * 2 * DIGEST :]
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        """Return the hash of the whole tree; of an empty one that of nothing."""
        return self._levels[-1] or hashlib.sha256(b"").digest()

    def prune(self, leaves: Iterable[int]) -> Json:
        """Return size, root and the tree with these leaves and the hashes that they need."""
        wanted = sorted(set(leaves))

        def part(level: int, index: int, low: int, high: int) -> list[object] | str:
            """Return a subtree; ``wanted[low:high]`` are in it."""
            if low == high:
                return self._levels[level][index * DIGEST : (index + 1) * DIGEST].hex()
            if level == 0:
                return [self._digests[index].hex()]
            left, right = 2 * index, 2 * index + 1
            if right * DIGEST >= len(self._levels[level - 1]):
                return part(level - 1, left, low, high)
            middle = bisect_left(wanted, right << (level - 1), low, high)
            return [part(level - 1, left, low, middle), part(level - 1, right, middle, high)]

        tree = part(len(self._levels) - 1, 0, 0, len(wanted)) if self._digests else self.root.hex()
        return {"size": len(self._digests), "root": self.root.hex(), "tree": tree}


def prove_removal(before: bytes, turn_ids: Iterable[str]) -> Json:
    """Return the proof that these turns were in a record and are not any more.

    Args:
        before: digests of all turns of the record before the deletion, one after the other, in any order.
        turn_ids: of the removed ones, all of the record.
    """
    digests = sorted({before[start : start + DIGEST] for start in range(0, len(before), DIGEST)})
    gone = {turn_digest(one) for one in turn_ids}
    was_there = TurnTree(digests).prune(index for index, one in enumerate(digests) if one in gone)
    left = [one for one in digests if one not in gone]
    places = [bisect_left(left, one) for one in gone]
    around = {index for place in places for index in (place - 1, place) if 0 <= index < len(left)}
    return {"before": was_there, "after": TurnTree(left).prune(around)}
