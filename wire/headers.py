"""Request and response header fields: options for Patina, and which fields the proxy forwards. Sans-IO.

Explicit options win over everything that is inferred. `store: false` is not an option: a popular client sends it by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from store.hashing import digest
from store.values import Json, TurnKind

#: Hop-by-hop fields (RFC 9110, 7.6.1), never forwarded.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"http2-settings",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


#: Patina's options: not for the backend.
_KEPT_HERE = frozenset(
    {
        b"host",
        b"expect",
        b"x-turn-type",
        b"x-session-id",
        b"x-session-done",
        b"x-patina-train",
        b"x-patina-wishes",
    }
)


_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key"})

#: Of the web page: a backend gets none of them, and sets none.
_OF_THE_PAGE = frozenset({b"x-patina-key", b"cookie", b"set-cookie"})


#: The proxy sets these itself: a backend may be another Patina, and CORS is decided here.
_OURS_TO_SAY = frozenset({b"x-patina-turn", b"x-patina-journal", b"x-patina-version", b"x-patina-wishes"})


_CORS = b"access-control-"


_MAX_NAME = 200

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(slots=True, kw_only=True)
class RequestOptions:
    """The options that a request sets explicitly.

    Attributes:
        user: the OpenAI field `user`: several users behind one key.
        continues: the turn that this request continues, where its API names it (`previous_response_id`).
        is_without_wishes: nothing may be added to its prompt.
    """

    kind: TurnKind | None
    session: str | None
    is_session_done: bool
    is_opted_out: bool
    user: str | None
    continues: str | None = None
    is_without_wishes: bool = False


def get_header(headers: Headers, name: bytes) -> str | None:
    """Return the first field of this (lower-case) name."""
    for found, value in headers:
        if found == name or found.lower() == name:
            return value.decode("latin-1").strip()
    return None


def content_length(headers: Headers) -> int | None:
    """Return the announced length of the body, if any."""
    value = get_header(headers, b"content-length")
    return (
        int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 19 else None
    )


def parse_request_options(headers: Headers, body: Json, session_in_path: str | None = None) -> RequestOptions:
    """Parse the options in the headers and in the body's metadata."""
    headers = tuple(headers)
    metadata = body.get("metadata")
    named: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    kind = (get_header(headers, b"x-turn-type") or "").lower()
    session = session_in_path or get_header(headers, b"x-session-id") or named.get("session_id")
    train = get_header(headers, b"x-patina-train") or named.get("patina_train")
    wishes = get_header(headers, b"x-patina-wishes") or named.get("patina_wishes")
    user = body.get("user")
    return RequestOptions(
        kind=TurnKind(kind) if kind in ("main", "side") else None,
        session=_identifier(session),
        is_session_done=(get_header(headers, b"x-session-done") or "").lower() in ("1", "true", "yes"),
        is_opted_out=_is_off(train),
        user=_identifier(user),
        is_without_wishes=_is_off(wishes),
    )


def _is_off(value: object) -> bool:
    return value is False or (isinstance(value, str) and value.lower() in ("off", "false", "no", "0"))


def _identifier(value: Any) -> str | None:
    """Return a client's identifier in a form that can be stored: a long one is replaced by its digest, an unprintable one is dropped."""
    if not isinstance(value, str) or not value or not value.isprintable():
        return None
    return value if len(value) <= _MAX_NAME else digest("patina-name", value)


def forward_request_headers(
    headers: Headers,
    *,
    drop: frozenset[bytes] = frozenset(),
    passes_credentials: bool = False,
    is_page: bool = False,
) -> list[tuple[bytes, bytes]]:
    """Return the fields that go to the backend; the client's credentials only if they are meant for it, cookies and Patina's key to the page."""
    headers = tuple(headers)
    gone = _kept_back(drop, passes_credentials, is_page, _named_by_connection(headers))
    return [field for field in headers if field[0].lower() not in gone]


@lru_cache(maxsize=64)
def _kept_back(
    drop: frozenset[bytes], passes_credentials: bool, is_page: bool, connection: frozenset[bytes]
) -> frozenset[bytes]:
    gone = _HOP_BY_HOP | _KEPT_HERE | connection | drop
    gone |= frozenset() if is_page else _OF_THE_PAGE
    return gone if passes_credentials else gone | _CREDENTIALS


def forward_response_headers(
    headers: Headers, *, drop: frozenset[bytes] = frozenset(), is_page: bool = False
) -> list[tuple[bytes, bytes]]:
    """Return the fields that go to the client; cookies only from the page."""
    headers = tuple(headers)
    gone = _not_told(drop if is_page else drop | _OF_THE_PAGE, _named_by_connection(headers))
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
