"""Which conversations a canary release serves: decided by a hash, so that every gateway decides alike and a conversation stays where it is. Pure.

The gateway knows no conversations. What names one to it is the session that the client names, or the first message of its user, together
with the key and the `user` field. Conversations that began before the release stay with the live version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from store.hashing import digest
from store.texts import first_user_text
from store.values import Json


def conversation_of(key_name: str, user: str | None, session: str | None, messages: Sequence[Json]) -> str:
    """Return what names the conversation of a request."""
    if session is not None:
        return _named(key_name, session)
    return _opened(key_name, user, first_user_text(messages))


def known_conversations(rows: Iterable[tuple[str, str | None, str, str]]) -> frozenset[str]:
    """Return the names that recorded conversations may have.

    Args:
        rows: key name, user, session id and first user text of each (`store.queries.canary.conversations_before`).
    """
    found = set()
    for key_name, user, session_id, text in rows:
        found |= {_named(key_name, session_id), _opened(key_name, user, text)}
    return frozenset(found)


def is_in_canary(conversation: str, policy: str, version: int, share: float) -> bool:
    """Whether a conversation is among the share that a version serves; each version draws anew."""
    drawn = int(digest("canary", policy, str(version), conversation)[:12], 16)
    return drawn < share * 16**12


def _named(key_name: str, session: str) -> str:
    return digest("named", key_name, session)


def _opened(key_name: str, user: str | None, text: str) -> str:
    return digest("opened", key_name, user or "", text)
