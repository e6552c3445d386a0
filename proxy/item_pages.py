"""Pages of lists, as OpenAI's API gives them. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from store.values import Json

_DEFAULT, _MOST = 20, 100


def read_query(query: bytes) -> dict[str, str]:
    return dict(parse_qsl(query.decode("latin-1")))


def page(newest_first: list[Json], options: Mapping[str, str]) -> Json:
    """Return a page of items: from the newest on, unless ``order`` is "asc", behind the item ``after``."""
    items = newest_first[::-1] if options.get("order") == "asc" else newest_first
    names = [item["id"] for item in items]
    if options.get("after") in names:
        items = items[names.index(options["after"]) + 1 :]
    limit = options.get("limit", "")
    most = (
        min(_MOST, max(1, int(limit))) if limit.isascii() and limit.isdigit() and len(limit) < 9 else _DEFAULT
    )
    shown = items[:most]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > most,
    }
