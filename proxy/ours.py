"""What a client that knows Patina can say, and who is speaking. Sans-IO: headers and bodies in, values out.

Explicit words win over anything that is guessed. `store: false` is not one of them: a popular client sends it by default.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from proxy.clients import named
from store.errors import WireError
from store.hashing import digest
from store.values import Json, TurnKind

#: Hop-by-hop fields (RFC 9110, 7.6.1): of one connection, never passed on.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
#: Our key and words for us: none of the backend's business.
_KEPT_HERE = frozenset(
    {
        b"host",
        b"expect",
        b"x-patina-key",
        b"x-turn-type",
        b"x-session-id",
        b"x-session-done",
        b"x-patina-train",
    }
)

_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key"})
#: A backend that is a Patina itself has its own turn; who may call from a browser is said by who is called.
_OURS_TO_SAY = frozenset({b"x-patina-turn"})
_CORS = b"access-control-"

_MAX_NAME = 200

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(slots=True, kw_only=True)
class Caller:
    """Who speaks.

    Attributes:
        scope: name of the key, under which the record knows its holder.
        trains: turns of this holder may train.
        passes_credentials: its own credentials go on to the backend.
    """

    scope: str
    client: str
    trains: bool = True
    passes_credentials: bool = False


@dataclass(slots=True, kw_only=True)
class Wishes:
    """What the request says explicitly.

    Attributes:
        user: the OpenAI field `user`: several people behind one key.
    """

    kind: TurnKind | None
    session: str | None
    is_session_done: bool
    is_opted_out: bool
    user: str | None


def header(headers: Headers, name: bytes) -> str | None:
    """Return the first field of that (lower-case) name."""
    for found, value in headers:
        if found == name or found.lower() == name:
            return value.decode("latin-1").strip()
    return None


def told_length(headers: Headers) -> int | None:
    """Return the body's length as the head tells it, if it does."""
    told = header(headers, b"content-length")
    return int(told) if told is not None and told.isascii() and told.isdigit() and len(told) < 19 else None


class Holder(Protocol):
    """Whose key it is."""

    @property
    def name(self) -> str: ...

    @property
    def trains(self) -> bool: ...


class Door(Protocol):
    """Who knows the keys (`store.keys.Keyring`)."""

    @property
    def is_open(self) -> bool:
        """Nobody needs a key."""
        ...

    def holder(self, token: bytes) -> Holder | None: ...


def read_caller(headers: Headers, keys: Door | str, *, passes_credentials: bool = False) -> Caller | None:
    """Return who speaks, or None when the key is missing or wrong.

    Args:
        keys: who knows the keys, or the one key there is; "": nobody needs one.
        passes_credentials: the client's own credentials are the backend's to judge; ours then comes as `x-patina-key`.
    """
    headers = tuple(headers)
    client = named(headers)
    tokens = [(name, token) for name, token in _tokens(headers) if token]
    if isinstance(keys, str) or not keys.is_open:
        for name, token in tokens:
            scope, trains = _holder(keys, token)
            if scope:
                passes = passes_credentials and name == b"x-patina-key"
                return Caller(scope=scope, client=client, trains=trains, passes_credentials=passes)
        if keys:
            return None
    scope = "anonymous"
    theirs = next((token for name, token in tokens if name != b"x-patina-key"), None)
    if passes_credentials and theirs is not None:
        # Different credentials are different people. Of a key of theirs nothing is kept but this.
        scope = f"caller-{digest('patina-caller', theirs.decode('latin-1'))[:12]}"
    return Caller(scope=scope, client=client, passes_credentials=passes_credentials)


def _holder(keys: Door | str, token: bytes) -> tuple[str, bool]:
    if isinstance(keys, str):
        return ("default" if keys and hmac.compare_digest(token, keys.encode()) else ""), True
    found = keys.holder(token)
    return (found.name, found.trains) if found is not None else ("", True)


def _tokens(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Yield what may be a key, by the field it came in."""
    for wanted in (b"x-patina-key", b"authorization", b"x-api-key", b"api-key"):
        for name, value in headers:
            if name.lower() == wanted:
                scheme, _, token = value.strip().partition(b" ")
                if wanted != b"authorization":
                    yield wanted, value.strip()
                elif scheme.lower() == b"bearer":
                    yield wanted, token.strip()
                break


_SECRET = re.compile(r"(?i)\bbearer\s+[^\s\"',]+|\b(?:sk|pk|rk|patina|tml|hf|gsk|xai|key|api)[-_][\w-]{8,}")


def scrub(text: str) -> str:
    """Return a text of somebody else's without what looks like a key: backends quote the one they refuse."""
    return _SECRET.sub("***", text)


def read_wishes(headers: Headers, body: Json, session_in_path: str | None = None) -> Wishes:
    """Return what the headers and the body's metadata say explicitly."""
    headers = tuple(headers)
    metadata = body.get("metadata")
    said: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    kind = (header(headers, b"x-turn-type") or "").lower()
    session = session_in_path or header(headers, b"x-session-id") or said.get("session_id")
    train = header(headers, b"x-patina-train") or said.get("patina_train")
    user = body.get("user")
    return Wishes(
        kind=TurnKind(kind) if kind in ("main", "side") else None,
        session=_identifier(session),
        is_session_done=(header(headers, b"x-session-done") or "").lower() in ("1", "true", "yes"),
        is_opted_out=train is False
        or (isinstance(train, str) and train.lower() in ("off", "false", "no", "0")),
        user=_identifier(user),
    )


def _identifier(value: Any) -> str | None:
    """Return a name that a client gave, fit to be stored: one that is too long stands for itself by its digest, an unprintable one is none."""
    if not isinstance(value, str) or not value or not value.isprintable():
        return None
    return value if len(value) <= _MAX_NAME else digest("patina-name", value)


def request_headers(
    headers: Headers, *, drop: frozenset[bytes] = frozenset(), passes_credentials: bool = False
) -> list[tuple[bytes, bytes]]:
    """Return the fields that go to the backend; the client's credentials only where they are meant for it."""
    headers = tuple(headers)
    gone = _kept_back(drop, passes_credentials, _named_by_connection(headers))
    return [field for field in headers if field[0].lower() not in gone]


@lru_cache(maxsize=64)
def _kept_back(
    drop: frozenset[bytes], passes_credentials: bool, connection: frozenset[bytes]
) -> frozenset[bytes]:
    gone = _HOP_BY_HOP | _KEPT_HERE | connection | drop
    return gone if passes_credentials else gone | _CREDENTIALS


def response_headers(headers: Headers, *, drop: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Return the fields that go to the client."""
    headers = tuple(headers)
    gone = _not_told(drop, _named_by_connection(headers))
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in gone and not name.lower().startswith(_CORS)
    ]


@lru_cache(maxsize=64)
def _not_told(drop: frozenset[bytes], connection: frozenset[bytes]) -> frozenset[bytes]:
    return _HOP_BY_HOP | _OURS_TO_SAY | connection | drop


def _named_by_connection(headers: tuple[tuple[bytes, bytes], ...]) -> frozenset[bytes]:
    return frozenset(
        part.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for part in value.split(b",")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackBody:
    """Explicit feedback as a client sent it.

    Attributes:
        reference: turn id or completion id; None when ``prompt`` and ``response`` say which turn.
        score: in [-1, 1].
    """

    reference: str | None
    prompt: str | None
    response: str | None
    score: float | None
    text: str
    idempotency_key: str | None


_THUMBS: Mapping[Any, float] = {
    "up": 1.0, "down": -1.0, "+1": 1.0, "-1": -1.0, "good": 1.0, "bad": -1.0, "positive": 1.0, "negative": -1.0,
    "like": 1.0, "dislike": -1.0, "👍": 1.0, "👎": -1.0,
}  # fmt: skip


def parse_feedback(body: Any) -> FeedbackBody:
    """Read a feedback body.

    Raises:
        WireError: one sentence that tells the client what is wrong.
    """
    if not isinstance(body, dict):
        raise WireError("the body must be a JSON object")
    reference = body.get("turn_id") or body.get("completion_id")
    if reference is not None and not isinstance(reference, str):
        raise WireError("turn_id and completion_id are strings")
    prompt, response = _last_words(body.get("prompt")), body.get("response")
    if reference is None and not (isinstance(prompt, str) and isinstance(response, str)):
        raise WireError("say which turn: turn_id, completion_id, or prompt and response")
    texts = [body.get(name) for name in ("text", "feedback", "comment")]
    text = next((t for t in texts if isinstance(t, str) and t.strip()), "")
    score = _score(body)
    if score is None and not text:
        raise WireError("give a score, thumbs, a rating, or text")
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
        found = _THUMBS.get(thumbs.lower()) if isinstance(thumbs, str) else None
        if found is None:
            raise WireError('thumbs is "up" or "down"')
        return found
    rating = body.get("rating")
    if rating is not None:
        if isinstance(rating, str) and rating.lower() in _THUMBS:
            return _THUMBS[rating.lower()]
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
