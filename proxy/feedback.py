"""The body of `POST /v1/feedback`. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from store.errors import WireError
from store.values import Json

#: Longest text, in characters: it goes whole into the teacher's prompt.
MAX_TEXT = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackBody:
    """Explicit feedback as a client sent it.

    Attributes:
        reference: turn id or completion id; None when ``prompt`` and ``response`` identify the turn.
        score: in [-1, 1].
    """

    reference: str | None
    prompt: str | None
    response: str | None
    score: float | None
    text: str
    idempotency_key: str | None


THUMBS: Mapping[Any, float] = {
    "up": 1.0, "down": -1.0, "+1": 1.0, "-1": -1.0, "good": 1.0, "bad": -1.0, "positive": 1.0, "negative": -1.0,
    "like": 1.0, "dislike": -1.0, "👍": 1.0, "👎": -1.0,
}  # fmt: skip


def parse_feedback(body: Any) -> FeedbackBody:
    """Parse a feedback body.

    Raises:
        WireError: one sentence for the client about what is wrong.
    """
    if not isinstance(body, dict):
        raise WireError("the body must be a JSON object")
    reference = body.get("turn_id") or body.get("completion_id")
    if reference is not None and not isinstance(reference, str):
        raise WireError("turn_id and completion_id are strings")
    prompt, response = _last_words(body.get("prompt")), body.get("response")
    if reference is None and not (isinstance(prompt, str) and isinstance(response, str)):
        raise WireError("name the turn: turn_id, completion_id, or prompt and response")
    texts = [body.get(name) for name in ("text", "feedback", "comment")]
    text = next((t for t in texts if isinstance(t, str) and t.strip()), "")
    if len(text) > MAX_TEXT:
        raise WireError(f"the text has {len(text)} characters, at most {MAX_TEXT} are taken")
    score = _score(body)
    if score is None and not text:
        raise WireError("send a score, thumbs, a rating, or text")
    key = body.get("idempotency_key")
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= 200):
        raise WireError("idempotency_key is a string of at most 200 characters")
    return FeedbackBody(
        reference=reference,
        prompt=prompt,
        response=response if isinstance(response, str) else None,
        score=score,
        text=text,
        idempotency_key=key,
    )


def _score(body: Json) -> float | None:
    score = body.get("score")
    if score is not None:
        if isinstance(score, bool) or not isinstance(score, int | float) or not -1 <= score <= 1:
            raise WireError("score is a number from -1 to 1")
        return float(score)
    thumbs = body.get("thumbs")
    if thumbs is not None:
        if isinstance(thumbs, bool):
            return 1.0 if thumbs else -1.0
        found = THUMBS.get(thumbs.lower()) if isinstance(thumbs, str) else None
        if found is None:
            raise WireError('thumbs is "up" or "down"')
        return found
    rating = body.get("rating")
    if rating is not None:
        if isinstance(rating, str) and rating.lower() in THUMBS:
            return THUMBS[rating.lower()]
        if isinstance(rating, bool) or not isinstance(rating, int | float) or not 1 <= rating <= 5:
            raise WireError('rating is a number from 1 to 5, or "up" or "down"')
        return (float(rating) - 3.0) / 2.0
    return None


def _last_words(prompt: Any) -> str | None:
    """Return the last user text of a prompt that is a string or a list of messages."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        for message in reversed(prompt):
            if isinstance(message, dict) and message.get("role") == "user":
                content = message.get("content")
                return content if isinstance(content, str) else None
    return None
