"""Ratings of Open WebUI, read from its feedback export, and the turns that they are about. Sans-IO.

A rating holds a snapshot of its chat. Its turn is the one whose reply and whose history are the chat's: arrival order plays no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store.hashing import digest
from store.texts import content_text
from store.values import Json

_MAX_TEXT = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """One rating as it is now.

    Attributes:
        score: −1, 0 or 1; 0: no thumb.
        text: the comment and the reason, which become the hint.
        said_at: time of the rated reply, as the chat has it; 0: unknown.
        spoken: role and text of the chat's messages up to the rated reply, which is the last.
    """

    rating_id: str
    score: float
    text: str
    said_at: float
    spoken: tuple[tuple[str, str], ...]

    @property
    def state(self) -> str:
        """A digest of what the user chose, which a changed rating does not share."""
        return digest("rating", repr(self.score), self.text)[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedTurn:
    """A turn with the rated reply."""

    turn_id: str
    created_at: float
    messages: Sequence[Json]


def parse_rating(item: Any) -> Rating | None:
    """Parse one item of the export; None: it rates no reply of a chat, or says nothing."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return None
    data, meta = _object(item, "data"), _object(item, "meta")
    score = _score(data.get("rating"))
    text = _text(data)
    messages = _object(_object(_object(_object(item, "snapshot"), "chat"), "chat"), "history").get("messages")
    spoken = _branch(messages, meta.get("message_id")) if isinstance(messages, dict) else ()
    if not spoken or spoken[-1][0] != "assistant" or (score is None and not text):
        return None
    assert isinstance(messages, dict)
    at = messages[meta["message_id"]].get("timestamp")
    return Rating(
        rating_id=item["id"],
        score=score or 0.0,
        text=text,
        said_at=float(at) if isinstance(at, int | float) else 0.0,
        spoken=spoken,
    )


def _object(value: Mapping[str, Any], name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _score(rating: Any) -> float | None:
    try:
        value = float(rating)
    except (TypeError, ValueError):
        return None
    return float((value > 0) - (value < 0))


def _text(data: Json) -> str:
    """Return the comment; else the reason, which Open WebUI writes as a code (``too_verbose``)."""
    for name in ("comment", "reason"):
        found = data.get(name)
        if isinstance(found, str) and found.strip():
            return (found if name == "comment" else found.replace("_", " ")).strip()[:_MAX_TEXT]
    return ""


def _branch(messages: Json, message_id: Any) -> tuple[tuple[str, str], ...]:
    """Return the messages from the root to one of them, oldest first."""
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    while isinstance(message_id, str) and message_id not in seen:
        seen.add(message_id)
        message = messages.get(message_id)
        if not isinstance(message, dict):
            break
        content = message.get("content")
        found.append((str(message.get("role")), content if isinstance(content, str) else ""))
        message_id = message.get("parentId")
    return tuple(reversed(found))


def find_turn(rating: Rating, candidates: Sequence[RatedTurn]) -> str | None:
    """Return the turn that a rating is about: the one that shares most of the chat, of equal ones the nearest in time.

    The question before the reply must be in the turn's last user message, around which Open WebUI may put a template.
    """
    ranked = [
        (_shared(rating.spoken[:-1], one.messages), -abs(one.created_at - rating.said_at), one.turn_id)
        for one in candidates
    ]
    best = max(ranked, default=None)
    return best[2] if best is not None and best[0] > 0 else None


def _shared(spoken: Sequence[tuple[str, str]], messages: Sequence[Json]) -> int:
    """Count the newest messages that chat and prompt share, minus what only one of them holds; 0: another question."""
    asked = [
        (str(message.get("role")), content_text(message.get("content")))
        for message in messages
        if message.get("role") in ("user", "assistant")
    ]
    count = 0
    for (role, text), (other, content) in zip(reversed(spoken), reversed(asked), strict=False):
        if role != other or text.strip() not in content:
            break
        count += 1
    return max(1, 1000 + count - max(len(spoken), len(asked))) if count else 0
