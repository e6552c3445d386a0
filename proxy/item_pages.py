"""Pages of lists and metadata, as in OpenAI's API. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from store.values import Json
from wire.api_translation import Untranslatable

_DEFAULT, _MOST = 20, 100
_MAX_PAIRS, _MAX_NAME, _MAX_VALUE = 16, 64, 512


def read_query(query: bytes) -> dict[str, str]:
    return dict(parse_qsl(query.decode("latin-1")))


def includes_logprobs(query: bytes) -> bool:
    """Whether a query asks for the log-probabilities of texts; SDKs write a list as ``include[]`` or ``include``."""
    return any(
        name in ("include", "include[]") and "message.output_text.logprobs" in value.split(",")
        for name, value in parse_qsl(query.decode("latin-1"))
    )


def read_limit(options: Mapping[str, str]) -> int:
    """Return how many items a page holds."""
    limit = options.get("limit", "")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9):
        return _DEFAULT
    return min(_MOST, max(1, int(limit)))


def is_oldest_first(options: Mapping[str, str], *, default: str) -> bool:
    """Return whether a list begins with the oldest item. Raises: Untranslatable: the order is unknown."""
    order = options.get("order", default)
    if order not in ("asc", "desc"):
        raise Untranslatable("order is 'asc' or 'desc'.", param="order")
    return order == "asc"


def read_metadata(body: Json) -> Json:
    """Return the metadata of a request. Raises: Untranslatable: it is not what OpenAI takes."""
    given: Any = body.get("metadata") or {}
    is_valid = isinstance(given, dict) and len(given) <= _MAX_PAIRS
    if not is_valid or not all(
        isinstance(value, str) and len(name) <= _MAX_NAME and len(value) <= _MAX_VALUE
        for name, value in given.items()
    ):
        raise Untranslatable(
            f"metadata holds at most {_MAX_PAIRS} pairs of texts of at most {_MAX_NAME} and {_MAX_VALUE} characters.",
            param="metadata",
        )
    found: Json = given
    return found


def page(newest_first: list[Json], options: Mapping[str, str]) -> Json:
    """Return a page of items: from the newest on, unless ``order`` is "asc", behind the item ``after``.

    Raises:
        Untranslatable: the order or the item is unknown; a page from the start would make a client that pages go in circles.
    """
    items = newest_first[::-1] if is_oldest_first(options, default="desc") else newest_first
    names = [item["id"] for item in items]
    if (after := options.get("after")) is not None:
        if after not in names:
            raise Untranslatable(f"There is no item '{after}' in this list.", status=404, param="after")
        items = items[names.index(after) + 1 :]
    most = read_limit(options)
    return list_of(items[:most], has_more=len(items) > most)


def list_of(shown: list[Json], *, has_more: bool) -> Json:
    """Return a list object with these items."""
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": has_more,
    }
