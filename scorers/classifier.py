"""What a message or clause says about the reply before it, and what it asks of replies, by a small network over hashed features. Pure numpy.

The model is an embedding bag and one hidden layer, with weights quantised to 8 bits (`classifier.npz`). A bucket of the hash table belongs
to one feature of the training data, which its 8-bit fingerprint tells: other features are unknown and count for nothing, so that a
message of unknown words stays undecided. The recipe is `lab.models.reader.train`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorers.features import features
from store.values import WishScope

WEIGHTS = Path(__file__).parent / "classifier.npz"

#: Outputs of the model, in order: the reaction, and the scope of what is asked of replies.
CLASSES = ("neither", "praise", "wish", "fault", "blame")
SCOPES = (
    "none",
    *(scope.value for scope in (WishScope.LASTING, WishScope.ONCE, WishScope.ANSWER, WishScope.WITHDRAWAL)),
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reading:
    """Probabilities of one message or clause; those of the first five, and of ``scopes``, sum to 1.

    Attributes:
        scopes: by `SCOPES`; "none": it asks nothing of replies.
        praise: thanks, praise or acceptance.
        wish: how the reply should have been, or what is right instead.
        fault: what does not work or is missing.
        blame: rejection without anything to act on: "wrong", sarcasm.
        known: share of the message's features that the training data had, in [0, 1].
    """

    neither: float
    praise: float
    wish: float
    fault: float
    blame: float
    scopes: Mapping[str, float]
    known: float

    @property
    def complaint(self) -> float:
        """Probability of a complaint, correction or wish about the reply."""
        return self.wish + self.fault + self.blame


#: Of a message without a character.
NOTHING = Reading(
    neither=1,
    praise=0,
    wish=0,
    fault=0,
    blame=0,
    scopes={one: float(one == "none") for one in SCOPES},
    known=1,
)


class Classifier:
    """The network.

    Args:
        fingerprints: [H] uint8; 0 marks a bucket without an owner.
        table: [H, D] int8 embeddings; ``scale`` [D] float32 turns them into floats.
        hidden: [D, U] weights, ``hidden_bias`` [U]; out: [U, 5 + 5] weights, ``out_bias`` [5 + 5].
    """

    def __init__(
        self,
        *,
        fingerprints: npt.NDArray[np.uint8],
        table: npt.NDArray[np.int8],
        scale: Floats,
        hidden: Floats,
        hidden_bias: Floats,
        out: Floats,
        out_bias: Floats,
    ) -> None:
        self._fingerprints = fingerprints
        self._table = table
        self._scale = scale
        self._hidden = hidden
        self._hidden_bias = hidden_bias
        self._out = out
        self._out_bias = out_bias

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Classifier:
        """Read a weights file. Raises: OSError, ValueError."""
        with np.load(path) as arrays:
            kept: dict[str, Any] = {
                name: arrays[name] for name in ("fingerprints", "table", "scale", "hidden_bias", "out_bias")
            }
            for name in ("hidden", "out", "hidden_bias", "out_bias", "scale"):
                kept[name] = arrays[name].astype(np.float32)
        return cls(**kept)

    def read(
        self, text: str, *, reply: str = "", prompt: str = "", before: str = "", after: str = ""
    ) -> Reading:
        """Return the probabilities of ``text``, a message that followed ``reply`` to ``prompt``, or a clause of one; see `features`."""
        if not text.strip():
            return NOTHING
        found = features(text, reply=reply, prompt=prompt, before=before, after=after)
        hashes = np.array(found, dtype=np.uint32)
        buckets, prints = slots(hashes, len(self._fingerprints))
        owned = buckets[self._fingerprints[buckets] == prints]
        known = len(owned) / max(1, len(hashes))
        total = self._table[owned].sum(axis=0, dtype=np.int32).astype(np.float32) * self._scale
        bag = total / np.float32(max(1, len(owned)) ** 0.5)
        inner = np.maximum(bag @ self._hidden + self._hidden_bias, 0)
        logits = inner @ self._out + self._out_bias
        shares, scopes = _softmax(logits[: len(CLASSES)]), _softmax(logits[len(CLASSES) :])
        return Reading(
            **dict(zip(CLASSES, shares, strict=True)),
            scopes=dict(zip(SCOPES, scopes, strict=True)),
            known=known,
        )


def _softmax(logits: Floats) -> list[float]:
    weights = np.exp(logits - logits.max())
    return [float(share) for share in weights / weights.sum()]


def slots(hashes: npt.NDArray[np.uint32], size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return (bucket, fingerprint in 1..255) of each hash; ``size`` is a power of 2."""
    buckets = (hashes & np.uint32(size - 1)).astype(np.int64)
    prints = ((hashes >> np.uint32(20)) % np.uint32(255) + np.uint32(1)).astype(np.uint8)
    return buckets, prints


@cache
def default_classifier() -> Classifier:
    """Return the classifier of this repository, read from its file at the first call."""
    return Classifier.load()
